"""PGA at the leaver: stochastic gradient ascent on its own loss, projected onto a ball around the reference model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from services.core.seeds import derive
from services.program.client import TaskInHand
from services.training import devices, optimizers
from services.training.local import TrainingFailed, TrainingStopped
from services.training.local_spec import LocalTraining
from services.training.task import Batch, ClientTask
from services.unlearning.own_accuracy import own_accuracy
from services.unlearning.pga.spec import Ascend


def carry_out(hand: TaskInHand[Ascend]) -> dict[str, float]:
    return ascend(hand.task, hand.model, hand.parameters, hand.seed, hand.device, **hand.signals)


def ascend(
    task: ClientTask,
    model: nn.Module,
    work: Ascend,
    seed: int,
    device: torch.device,
    *,
    on_progress: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Climb in place from the weights that `model` holds, the reference.

    Ends when the accuracy on the client's own data is at most `stop_accuracy`, at the distance bound, after
    `max_epochs`, or when the loss is no longer finite: then the last finite weights are kept and `diverged` is 1.
    Raises TrainingFailed when not a single step could be taken.
    """
    model.to(device).train()
    params = [param for param in model.parameters() if param.requires_grad]
    reference = [param.detach().clone() for param in params]
    optimizer = optimizers.make(_local(work), params, derive(seed, "curvature"))
    num_steps, num_projections, diverged = 0, 0, False
    total_steps = work.max_epochs * math.ceil(task.num_train / work.batch_size)
    accuracy = own_accuracy(task, model, device)

    with devices.seeded(derive(seed, "layers"), device):
        for batch in _batches(task, work, seed, device):
            if should_stop is not None and should_stop():
                raise TrainingStopped
            if accuracy <= work.stop_accuracy or _too_far(params, reference, work):
                break
            before = [param.detach().clone() for param in params]
            with devices.autocast(device):
                loss = -task.loss(model, batch)
            if math.isfinite(loss.item()):
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(params, work.clip_norm)
                optimizer.step()
            if not (math.isfinite(loss.item()) and all(bool(torch.isfinite(param).all()) for param in params)):
                _restore(params, before)
                diverged = True
                break
            num_steps += 1
            if project(params, reference, work.radius):
                num_projections += 1
                optimizer = optimizers.make(
                    _local(work), params, derive(seed, "curvature")
                )  # momentum belongs to weights that are gone
            if num_steps % work.check_every == 0:
                accuracy = own_accuracy(task, model, device)
            if on_progress is not None:
                on_progress(min(1.0, num_steps / total_steps))
    if diverged and num_steps == 0:
        raise TrainingFailed("the loss is not finite at the reference itself: there is nothing to climb from")
    return {
        "forgotten_accuracy": own_accuracy(task, model, device),
        "distance": distance(params, reference),
        "num_steps": float(num_steps),
        "num_projections": float(num_projections),
        "diverged": float(diverged),
    }


@torch.no_grad()
def project(params: Sequence[Tensor], reference: Sequence[Tensor], radius: float) -> bool:
    """Pull the parameters back onto the ball of `radius` around the reference; False when they lie inside."""
    length = distance(params, reference)
    if length <= radius:
        return False
    for param, origin in zip(params, reference, strict=True):
        param.copy_(origin + (param - origin) * (radius / length))
    return True


@torch.no_grad()
def distance(params: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    squares = (float(torch.sum((a.double() - b.double()) ** 2)) for a, b in zip(params, reference, strict=True))
    return math.sqrt(math.fsum(squares))


def _batches(task: ClientTask, work: Ascend, seed: int, device: torch.device) -> Iterator[Batch]:
    for epoch in range(work.max_epochs):
        yield from devices.stream(task.train_batches(work.batch_size, derive(seed, "epoch", epoch)), device)


def _too_far(params: Sequence[Tensor], reference: Sequence[Tensor], work: Ascend) -> bool:
    return work.distance_bound is not None and distance(params, reference) >= work.distance_bound


@torch.no_grad()
def _restore(params: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    for param, origin in zip(params, before, strict=True):
        param.copy_(origin)


def _local(work: Ascend) -> LocalTraining:
    return LocalTraining(learning_rate=work.learning_rate, momentum=work.momentum, batch_size=work.batch_size)
