"""The classes of a client's training samples, and tasks whose loss or samples are others than their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from services.data.dataset import Array
from services.training import devices
from services.training.local import TrainingFailed
from services.training.task import Batch, ClientTask, Labelled, Sampled, batches
from services.wire.v1.runs import ModelSpec

COUNTING_BATCH: Final = 512

Loss = Callable[[nn.Module, Batch], Tensor]
"""Mean over the batch, with its graph."""


def labelled(task: ClientTask) -> Labelled:
    if not isinstance(task, Labelled):
        raise TrainingFailed("this recovery needs a task with predict(model, batch); use the recovery plain")
    return task


@torch.no_grad()
def class_counts(task: Labelled, model: nn.Module, device: torch.device) -> Tensor:
    """How many of the training samples each class has, as a vector over the model's classes."""
    was_training = model.training
    model.to(device).eval()
    counts = torch.zeros(0, dtype=torch.float64)
    for batch in devices.stream(task.train_batches(COUNTING_BATCH, 0), device):
        logits, labels = task.predict(model, batch)
        found = torch.bincount(labels.cpu(), minlength=logits.shape[1]).double()
        counts = found if not len(counts) else counts + found
    model.train(was_training)
    if not len(counts):
        raise TrainingFailed("the task gave no training batches; check the data source")
    return counts


def sampled(task: ClientTask) -> Sampled:
    """The task, if it gives arrays of numbers."""
    if not isinstance(task, Sampled) or task.train_arrays[0].dtype.kind != "f":
        raise TrainingFailed(
            "this recovery makes samples from images or tables of numbers, as a task gives them with train_arrays; "
            "use the recovery plain"
        )
    return task


def fingerprint(x: Array, y: Array) -> str:
    """A digest of the samples: what was made of others has another one."""
    digest = hashlib.sha256(repr((x.shape, str(x.dtype), y.shape)).encode())
    digest.update(np.ascontiguousarray(x).data)
    digest.update(np.ascontiguousarray(y).data)
    return digest.hexdigest()


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
