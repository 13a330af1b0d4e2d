"""Parameters of QuickDrop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.recovery.task import RecoveryTask
from services.wire.message import Message

Rate = Annotated[float, Field(gt=0, le=1000)]


class QuickDrop(Message):
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.01, description="Of each class's samples, rounded up: so many are distilled."
    )
    distillation_epochs: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=20,
        description="Steps of gradient matching for each class; 0: the real samples they begin with are used.",
    )
    image_learning_rate: Rate = 0.1
    image_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    real_batch: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=256, description="Real samples of a class whose gradient is matched in a step."
    )
    local_epochs: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=20, description="Over the distilled set, in each round."
    )


class DistilledTraining(QuickDrop, RecoveryTask):
    """Train on the distilled set, which is made when there is none of the samples that the client has now."""

    kind: Literal["distilled_training"] = "distilled_training"
