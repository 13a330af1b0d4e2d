"""What a data holder brings: a model, batches, a loss. Implement `ClientTask` for your own; `Classifier` is built in.

The code is loaded from the data holder's machine; the coordinator never sends any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import numpy as np

from services.core.errors import Rejected
from services.data.data_folders import find
from services.data.dataset import Array, Dataset
from services.models.spec import CUSTOM, params_of
from services.wire.v1.runs import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

Batch = Any
"""A tensor, or a tuple or dict of batches, on the CPU: the loop moves it to the device."""


class ClientTask(Protocol):
    @property
    def num_train(self) -> int: ...

    @property
    def num_eval(self) -> int: ...

    def model(self, spec: ModelSpec) -> nn.Module:
        """The architecture, on the CPU; its weights are overwritten. Updates carry its state_dict's names."""
        ...

    def train_batches(self, batch_size: int, seed: int) -> Iterable[Batch]:
        """One epoch over all training samples, in an order that depends on the seed only."""
        ...

    def eval_batches(self, batch_size: int) -> Iterable[Batch]:
        """All held-out samples, in a fixed order."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean over the batch, with its graph."""
        ...

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, int, int]:
        """(sum of the losses, number correct, number of samples)."""
        ...


@runtime_checkable
class LeavesOut(Protocol):
    """What a task offers beside, so that single samples can be erased."""

    def leave_out(self, samples: Collection[int]) -> Collection[int]:
        """From now on no batch, of training or evaluation, holds a sample of these row numbers, and `num_train` and
        `num_eval` count the others. Always called with all that must be left out. Returns those it does not have."""
        ...


@runtime_checkable
class Labelled(ClientTask, Protocol):
    """What distillation and audits need besides: a task whose batches have one right class per sample."""

    def predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(logits [samples, classes] with their graph, right classes [samples])."""
        ...


class Classifier:
    """Cross-entropy on arrays of inputs and integer labels: images, tables and texts alike.

    `folders`: where weights that a model calls `pretrained` are looked for.
    """

    def __init__(self, data: Dataset, folders: Sequence[Path] = ()) -> None:
        self._whole = self._data = data
        self._folders = folders
        self._products: Tensor | None = None

    @property
    def num_train(self) -> int:
        return len(self._data.y_train)

    @property
    def num_eval(self) -> int:
        return len(self._data.y_test)

    def model(self, spec: ModelSpec) -> nn.Module:
        from services.models.build import build

        self._check_fit(spec)
        model = build(spec, seed=0)
        if (file := getattr(params_of(spec), "pretrained", None)) is not None:
            from services.models.pretrained import load_pretrained

            load_pretrained(model, find(file, self._folders))
        return model

    @property
    def train_arrays(self) -> tuple[Array, Array]:
        return self._data.x_train, self._data.y_train

    def inner_products(self) -> Tensor:
        """Inner products of every two training samples; kept, because every round of an experiment needs the same."""
        import torch

        if self._products is None:
            samples = torch.from_numpy(self._data.x_train).flatten(1)
            self._products = samples @ samples.T
        return self._products

    def order(self, seed: int) -> Array:
        """The order in which an epoch takes the training samples."""
        return np.random.default_rng(seed).permutation(self.num_train)

    def train_batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        yield from _batches(*self.train_arrays, self.order(seed), batch_size)

    def eval_batches(self, batch_size: int) -> Iterator[Batch]:
        import torch

        inputs, labels = torch.from_numpy(self._data.x_test), torch.from_numpy(self._data.y_test)
        for first in range(0, self.num_eval, batch_size):
            rows = slice(first, first + batch_size)
            yield inputs[rows], labels[rows]

    def leave_out(self, samples: Collection[int]) -> Collection[int]:
        self._data, self._products = self._whole.without(samples), None
        return self._whole.unknown(samples)

    def predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits with an axis of positions are a language model's: there, the class of a position is its next token."""
        inputs, labels = batch
        logits: Tensor = model(inputs)
        if logits.ndim == 3:
            return logits.flatten(0, 1), _next_tokens(inputs, labels).flatten()
        return logits, labels

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(*self.predict(model, batch))

    def score(self, model: nn.Module, batch: Batch) -> tuple[float, int, int]:
        from torch.nn.functional import cross_entropy

        logits, labels = self.predict(model, batch)
        logits = logits.float()
        loss_sum = cross_entropy(logits, labels, reduction="sum")
        return float(loss_sum), int((logits.argmax(dim=1) == labels).sum()), len(labels)

    def _check_fit(self, spec: ModelSpec) -> None:
        if spec.name == CUSTOM:
            raise Rejected("invalid-run", "The run's model is custom: start the worker with the --task that builds it.")
        params = params_of(spec)
        sample_shape = self._data.x_train.shape[1:]
        if np.prod(sample_shape) != np.prod(params.input_shape):
            raise Rejected(
                "invalid-run",
                f"The model takes input_shape {list(params.input_shape)}; the samples here have {list(sample_shape)}.",
            )
        highest = max(int(y.max()) for y in (self._data.y_train, self._data.y_test) if len(y))
        if highest >= params.num_classes:
            raise Rejected("invalid-run", f"The data has class {highest}; num_classes is {params.num_classes}.")


BUILTIN_TASKS: Final[dict[str, Callable[[Dataset, Sequence[Path]], ClientTask]]] = {
    "classifier": Classifier,
    "image-classifier": Classifier,
    "tabular-classifier": Classifier,
}
"""What `--task builtin:NAME` names."""


def _next_tokens(inputs: Tensor, labels: Tensor) -> Tensor:
    import torch

    return torch.cat([inputs[:, 1:].long(), labels[:, None]], dim=1)


def _batches(x: Array, y: Array, order: Array, batch_size: int) -> Iterator[Batch]:
    import torch

    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    for first in range(0, len(order), batch_size):
        rows = torch.from_numpy(order[first : first + batch_size])
        yield inputs[rows], labels[rows]
