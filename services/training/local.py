"""What a client does between receiving a model and returning its update.

On the CPU, with one intra-op thread, equal (weights, data, parameters, seed) give equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from services.core.seeds import derive
from services.models.weights import load_weights, save_tensors
from services.training import devices, optimizers
from services.training.local_spec import LocalTraining
from services.training.task import ClientTask

__all__ = ["TrainingFailed", "TrainingStopped", "delta", "load_weights", "snapshot", "train", "write_update"]


class TrainingFailed(ValueError):
    """These weights, data and parameters give no usable update; the same attempt would fail again."""


class TrainingStopped(Exception):
    """`should_stop` said so: the work is no longer wanted."""


def train(
    task: ClientTask,
    model: nn.Module,
    local: LocalTraining,
    seed: int,
    device: torch.device,
    *,
    on_progress: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Train `model` in place. Returns `loss`: the mean over the last epoch (nothing with epochs = 0)."""
    model.to(device).train()
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer = optimizers.make(local, params, derive(seed, "curvature"))
    num_steps = local.epochs * math.ceil(task.num_train / local.batch_size)
    step = 0
    metrics: dict[str, float] = {}

    with devices.seeded(derive(seed, "layers"), device):
        for epoch in range(local.epochs):
            losses: list[float] = []
            batches = task.train_batches(local.batch_size, derive(seed, "epoch", epoch))
            for batch in devices.stream(batches, device):
                if should_stop is not None and should_stop():
                    raise TrainingStopped

                with devices.autocast(device):
                    loss = task.loss(model, batch)
                losses.append(loss.item())
                if not math.isfinite(losses[-1]):
                    raise loss_not_finite(losses[-1], step, num_steps, epoch)
                optimizer.backward(loss)
                if local.clip_norm is not None:
                    nn.utils.clip_grad_norm_(params, local.clip_norm)
                optimizer.step()

                step += 1
                if on_progress is not None:
                    on_progress(min(1.0, step / num_steps))
            if not losses:
                raise TrainingFailed("the task gave no training batches; check the data source")
            metrics["loss"] = sum(losses) / len(losses)
    return metrics


def loss_not_finite(loss: float, step: int, num_steps: int, epoch: int) -> TrainingFailed:
    """`step` and `epoch` count from 0."""
    return TrainingFailed(
        f"the loss became {loss} at step {step + 1} of {num_steps} (epoch {epoch + 1});"
        " use a lower local.learning_rate, or set local.clip_norm"
    )


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the state_dict on the CPU, to take the difference from after training."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}


def delta(base: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """trained - base for every floating-point tensor, in its own dtype; integer buffers are left out."""
    return {name: trained[name].detach().cpu() - base[name] for name in base if base[name].is_floating_point()}


def write_update(path: Path, update: Mapping[str, Tensor]) -> None:
    """Refuses NaN and Inf here, where the client can still say why."""
    for name, tensor in update.items():
        if not bool(torch.isfinite(tensor).all()):
            raise TrainingFailed(f"tensor {name!r} of the update contains NaN or Inf; use a lower local.learning_rate")
    save_tensors(path, update)
