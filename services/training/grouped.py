"""Many clients trained together: the same steps with less overhead, where the model is an mlp and the optimiser SGD.

Everything else is trained one by one with `local.train`. Either way a client sees the batches of its own seed, and the
two ways agree within TOLERANCE. On the CPU with one intra-op thread, equal members in the same order and an equal group
size give equal bits: the group size belongs to the description of an experiment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from services.core.seeds import derive
from services.training import local as single
from services.training.local import TrainingFailed, loss_not_finite
from services.training.local_spec import LocalTraining
from services.training.stacked import StackedMlp
from services.training.task import Classifier, ClientTask

TOLERANCE: Final = 1e-4
"""Of an update's difference between the two ways, relative to its own L2 norm."""
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
    """Only sum(weight * update) over the members. Raises TrainingFailed when one member's training fails."""
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
        group = _Group(members[first : first + group_size], model, local)
        group.train()
        for slot in group.slots:
            if failed := group.failure(slot):
                raise failed
            metrics.append(group.metrics(slot))
        share = torch.empty(len(group.slots))
        share[group.slots] = torch.tensor(weights[first : first + group_size], dtype=torch.float32)
        for name, tensor in group.deltas().items():
            total[name].view(-1).addmv_(tensor.flatten(1).T, share)
    return Summed(total, metrics)


def can_group(members: Sequence[Member], model: nn.Module, local: LocalTraining) -> bool:
    """A subclass of Classifier may have another loss, hence `is`."""
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


class _Group:
    """Some members in a stack, the one with most samples first: whoever still has batches is then a prefix of it."""

    def __init__(self, members: Sequence[Member], model: nn.Module, local: LocalTraining) -> None:
        order = sorted(range(len(members)), key=lambda i: -members[i].task.num_train)
        self.slots = [order.index(i) for i in range(len(members))]
        """Where in the stack each member is."""
        self._seeds = [members[i].seed for i in order]
        self._tasks: list[Any] = [members[i].task for i in order]
        self._sizes: list[int] = [task.num_train for task in self._tasks]
        self._local = local
        self._layers = _linear_layers(model)
        self._stack = StackedMlp(list(self._layers.values()), len(members), local)
        self._losses = torch.zeros(local.epochs, self._num_steps(0), len(members), dtype=torch.float64)

    def train(self) -> None:
        local, sizes = self._local, torch.tensor(self._sizes)
        data = [tuple(map(torch.from_numpy, task.train_arrays)) for task in self._tasks]
        samples = [(x.flatten(1), y) for x, y in data]
        inputs = torch.zeros(len(sizes), local.batch_size, samples[0][0].shape[1])
        labels = torch.zeros(len(sizes), local.batch_size, dtype=torch.int64)
        for epoch in range(local.epochs):
            orders = [
                torch.from_numpy(task.order(derive(seed, "epoch", epoch)))
                for task, seed in zip(self._tasks, self._seeds, strict=True)
            ]
            for step in range(self._num_steps(0)):
                counts = (sizes - step * local.batch_size).clamp(max=local.batch_size)
                active, width = int((counts > 0).sum()), int(counts[0])
                for slot, ((x, y), order) in enumerate(zip(samples[:active], orders, strict=False)):
                    rows = order[step * local.batch_size :][: local.batch_size]
                    torch.index_select(x, 0, rows, out=inputs[slot, : len(rows)])
                    torch.index_select(y, 0, rows, out=labels[slot, : len(rows)])
                filled = torch.arange(width) < counts[:active, None]
                shares = filled / counts[:active, None]
                self._losses[epoch, step, :active] = self._stack.step(
                    inputs[:active, :width], labels[:active, :width], shares
                )

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
        """In an epoch; the first slot has most."""
        return math.ceil(self._sizes[slot] / self._local.batch_size)
