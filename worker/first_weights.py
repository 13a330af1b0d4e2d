"""The weights that a run of a data holder's own model starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from services.training.task import ClientTask
    from services.wire.v1.runs import ModelSpec


def first_weights(task: ClientTask, spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """The weights as the task's `model` draws them. It takes them from torch's global generator, so that is seeded here
    and left as it was: equal seeds give equal bits."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.model(spec)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
