"""What a method's part at a client is given: a task, with the model and the data that it is about.

A handler takes it and returns figures. Where its kind of task returns an update, it trains the model in place, and the
worker makes the update of the difference. It raises `TrainingFailed` when it would fail again with the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

from services.tensors.streams import StoredFile
from services.training.local_spec import LocalTraining
from services.wire.v1.runs import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from services.training.task import ClientTask

P = TypeVar("P")


class Signals(TypedDict):
    """Called between batches; `should_stop`: nobody wants the result any more, raise `TrainingStopped`."""

    on_progress: Callable[[float], None]
    should_stop: Callable[[], bool]


@dataclass(frozen=True)
class TaskInHand(Generic[P]):
    task: ClientTask
    """The client's own data and model code."""
    model: nn.Module
    """The model, with the weights that the task starts from."""
    spec: ModelSpec
    parameters: P
    """What the method's description names for this kind of task; None where it names nothing."""
    local: LocalTraining
    seed: int
    device: torch.device
    signals: Signals
    blobs: Mapping[str, Path]
    """Files of the digests that the parameters name."""

    def other_model(self, digest: str) -> nn.Module:
        """A model of the same architecture with the weights of one of the blobs."""
        from services.models.weights import load_weights

        model = self.task.model(self.spec)
        load_weights(model, StoredFile(self.blobs[digest]))
        return model


Handler = Callable[[TaskInHand[P]], dict[str, float]]
