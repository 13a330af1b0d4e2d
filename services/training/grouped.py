"""Many clients trained together: the same steps with less overhead, where the model is an mlp and the optimiser SGD.

Everything else is trained one by one with `local.train`. Either way a client sees the batches of its own seed, and the
two ways agree within TOLERANCE. On the CPU with one intra-op thread, equal members in the same order and an equal group
size give equal bits: the group size belongs to the description of an experiment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from services.core.seeds import derive
from services.training import local as single
from services.training.local import TrainingFailed, loss_not_finite
from services.training.local_spec import LocalTraining
from services.training.stacked import DualLayer, StackedMlp
from services.training.task import Classifier, ClientTask

TOLERANCE: Final = 1e-4
"""The tolerated difference of an update between the two ways, relative to its own L2 norm."""
CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Member:
    task: ClientTask
    seed: int


@dataclass(frozen=True)
class Trained:
    delta: dict[str, Tensor]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Summed:
    """What is left of an `aggregate_only` round: no client's own update, so nothing to replay or to calibrate."""

    delta: dict[str, Tensor]
    metrics: list[dict[str, float]]


def train_each(
    members: Sequence[Member], model: nn.Module, local: LocalTraining, *, group_size: int
) -> Iterator[Trained | TrainingFailed]:
    """Each member's update from the weights of `model`, in the members' order; `model` is the same afterwards.

    The tensors of a group share memory: keep all of its updates, or copy.
    """
    if not can_group(members, model, local):
        yield from (_train_alone(member, model, local) for member in members)
        return
    for first in range(0, len(members), group_size):
        group = _Group(members[first : first + group_size], model, local)
        group.train()
        deltas = group.deltas()
        for slot in group.slots:
            failed = group.failure(slot)
            yield failed or Trained({name: tensor[slot] for name, tensor in deltas.items()}, group.metrics(slot))


def train_sum(
    members: Sequence[Member], weights: Sequence[float], model: nn.Module, local: LocalTraining, *, group_size: int
) -> Summed:
    """Train the members, and keep only sum(weight * update) of them. Raises TrainingFailed when the training of one
    fails."""
    total = {
        name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items() if tensor.is_floating_point()
    }
    metrics: list[dict[str, float]] = []
    if not can_group(members, model, local):
        for weight, outcome in zip(weights, train_each(members, model, local, group_size=1), strict=True):
            if isinstance(outcome, TrainingFailed):
                raise outcome
            metrics.append(outcome.metrics)
            for name, tensor in outcome.delta.items():
                total[name].add_(tensor, alpha=weight)
        return Summed(total, metrics)
    for first in range(0, len(members), group_size):
        group = _Group(members[first : first + group_size], model, local, only_sum=True)
        group.train()
        for slot in group.slots:
            if failed := group.failure(slot):
                raise failed
            metrics.append(group.metrics(slot))
        group.add_to(total, weights[first : first + group_size])
    return Summed(total, metrics)


def can_group(members: Sequence[Member], model: nn.Module, local: LocalTraining) -> bool:
    """Whether the members can be trained in one stack. A subclass of Classifier may have another loss, hence `is`."""
    return local.optimizer == "sgd" and bool(_linear_layers(model)) and all(type(m.task) is Classifier for m in members)


def _linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The layers of an mlp, by name; nothing when the model is anything else."""
    layers = list(model.named_children()) if isinstance(model, nn.Sequential) else []
    kinds = [type(layer) for _, layer in layers]
    linear = {name: layer for name, layer in layers if isinstance(layer, nn.Linear)}
    is_mlp = kinds == [nn.Flatten, *[nn.Linear, nn.ReLU] * (len(linear) - 1), nn.Linear]
    plain = all(param.dtype == torch.float32 and param.requires_grad for param in model.parameters())
    return linear if is_mlp and plain else {}


def _train_alone(member: Member, model: nn.Module, local: LocalTraining) -> Trained | TrainingFailed:
    base = single.snapshot(model)
    try:
        metrics = single.train(member.task, model, local, member.seed, CPU)
        return Trained(single.delta(base, model.state_dict()), metrics)
    except TrainingFailed as failed:
        return failed
    finally:
        model.load_state_dict(base)


@lru_cache(maxsize=16)
def _shares(counts: tuple[int, ...]) -> Tensor:
    """The weight of each sample in the mean of its batch; the first batch is the longest."""
    sizes = torch.tensor(counts)[:, None]
    return (torch.arange(counts[0]) < sizes) / sizes


class _Group:
    """Some members in a stack, the one with most samples first: whoever still has batches is then a prefix of it."""

    def __init__(
        self, members: Sequence[Member], model: nn.Module, local: LocalTraining, *, only_sum: bool = False
    ) -> None:
        order = sorted(range(len(members)), key=lambda i: -members[i].task.num_train)
        self.slots = [order.index(i) for i in range(len(members))]
        """Each member's place in the stack."""
        self._seeds = [members[i].seed for i in order]
        self._tasks: list[Any] = [members[i].task for i in order]
        self._sizes: list[int] = [task.num_train for task in self._tasks]
        self._local = local
        self._samples = [torch.from_numpy(task.train_arrays[0]).flatten(1) for task in self._tasks]
        self._labels = [torch.from_numpy(task.train_arrays[1]) for task in self._tasks]
        self._losses = torch.zeros(local.epochs, self._num_steps(0), len(members), dtype=torch.float64)
        self._layers = _linear_layers(model)
        self._dual: DualLayer | None = None
        if only_sum and self._dual_pays():
            name = next(iter(self._layers))
            products = [task.inner_products() for task in self._tasks]
            self._dual = DualLayer(self._layers.pop(name), self._samples, products, local.learning_rate)
            self._dual_name = name
        self._stack = StackedMlp(list(self._layers.values()), len(members), local)
        self._inputs = torch.zeros(
            len(members), local.batch_size if self._dual is None else 0, self._samples[0].shape[1]
        )

    def train(self) -> None:
        size = self._local.batch_size
        labels = torch.zeros(len(self._sizes), self._sizes[0], dtype=torch.int64)
        for epoch in range(self._local.epochs):
            orders = [
                torch.from_numpy(task.order(derive(seed, "epoch", epoch)))
                for task, seed in zip(self._tasks, self._seeds, strict=True)
            ]
            for row, own, order in zip(labels, self._labels, orders, strict=True):
                torch.index_select(own, 0, order, out=row[: len(order)])
            if self._dual is not None:
                self._dual.begin_epoch(orders)
            for step, first in enumerate(range(0, self._sizes[0], size)):
                counts = tuple(min(size, whole - first) for whole in self._sizes if whole > first)
                now = labels[: len(counts), first : first + counts[0]]
                losses = self._step(first, orders, now, _shares(counts))
                self._losses[epoch, step, : len(counts)] = losses

    def _step(self, first: int, orders: Sequence[Tensor], labels: Tensor, shares: Tensor) -> Tensor:
        """One step on the samples from `first` on, in this epoch's orders."""
        num, width = labels.shape
        if (dual := self._dual) is not None:
            outputs = dual.outputs(first, num, width)
            return self._stack.step(
                outputs, labels, shares, pass_down=lambda errors: dual.descend(first, errors.mul_(outputs > 0))
            )
        for inputs, own, order in zip(self._inputs[:num], self._samples, orders, strict=False):
            rows = order[first : first + width]
            torch.index_select(own, 0, rows, out=inputs[: len(rows)])
        return self._stack.step(self._inputs[:num, :width], labels, shares)

    def _dual_pays(self) -> bool:
        """It does with plain SGD, a hidden layer, and samples whose inner products take no more room than they do."""
        local = self._local
        is_plain = not (local.momentum or local.weight_decay or local.clip_norm)
        return is_plain and len(self._layers) > 1 and self._sizes[0] <= self._samples[0].shape[1]

    def add_to(self, total: dict[str, Tensor], weights: Sequence[float]) -> None:
        """Add sum(weight * update), the weights in the members' order."""
        shares = torch.empty(len(self.slots))
        shares[self.slots] = torch.tensor(weights, dtype=torch.float32)
        if self._dual is not None:
            self._dual.add_moves(total[f"{self._dual_name}.weight"], total[f"{self._dual_name}.bias"], shares)
        for name, tensor in self.deltas().items():
            total[name].view(-1).addmv_(tensor.flatten(1).T, shares)

    def deltas(self) -> dict[str, Tensor]:
        """Trained - base, every tensor with the axis of slots in front. Uses up the stack."""
        found = {}
        for (name, layer), weight, bias in zip(
            self._layers.items(), self._stack.weights, self._stack.biases, strict=True
        ):
            found[f"{name}.weight"] = weight.sub_(layer.weight.detach())
            found[f"{name}.bias"] = bias.squeeze(1).sub_(layer.bias.detach())
        return found

    def metrics(self, slot: int) -> dict[str, float]:
        return {"loss": float(self._of(slot)[-1].mean())} if self._local.epochs else {}

    def failure(self, slot: int) -> TrainingFailed | None:
        broken = (~self._of(slot).isfinite()).flatten().nonzero()
        if not len(broken):
            return None
        step, per_epoch = int(broken[0]), self._num_steps(slot)
        loss = float(self._of(slot).flatten()[step])
        return loss_not_finite(loss, step, self._local.epochs * per_epoch, step // per_epoch)

    def _of(self, slot: int) -> Tensor:
        return self._losses[:, : self._num_steps(slot), slot]

    def _num_steps(self, slot: int) -> int:
        """Batches in an epoch; the first slot has most."""
        return math.ceil(self._sizes[slot] / self._local.batch_size)
