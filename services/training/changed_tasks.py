"""A client's task with other samples, or with another loss, for methods that train as usual but for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor, nn

from services.data.dataset import Array
from services.training.task import Batch, ClientTask, batches
from services.wire.v1.runs import ModelSpec

Loss = Callable[[nn.Module, Batch], Tensor]
"""Mean over the batch, with its graph."""


class _Changed:
    """A client's task of which a part is another."""

    def __init__(self, task: ClientTask) -> None:
        self._task = task

    @property
    def num_train(self) -> int:
        return self._task.num_train

    @property
    def num_eval(self) -> int:
        return self._task.num_eval

    def model(self, spec: ModelSpec) -> nn.Module:
        return self._task.model(spec)

    def train_batches(self, batch_size: int, seed: int) -> Iterable[Batch]:
        return self._task.train_batches(batch_size, seed)

    def eval_batches(self, batch_size: int) -> Iterable[Batch]:
        return self._task.eval_batches(batch_size)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._task.loss(model, batch)

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, int, int]:
        return self._task.score(model, batch)


class OtherSamples(_Changed):
    """A client's task with other training samples; everything else is as it was."""

    def __init__(self, task: ClientTask, x: Array, y: Array) -> None:
        super().__init__(task)
        self._x, self._y = x, y

    @property
    def num_train(self) -> int:
        return len(self._y)

    def train_batches(self, batch_size: int, seed: int) -> Iterable[Batch]:
        return batches(self._x, self._y, np.random.default_rng(seed).permutation(len(self._y)), batch_size)


class WithLoss(_Changed):
    """A client's task with another loss for training; everything else is as it was."""

    def __init__(self, task: ClientTask, loss: Loss) -> None:
        super().__init__(task)
        self._loss = loss

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._loss(model, batch)
