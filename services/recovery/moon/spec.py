"""Parameters of MOON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.recovery.task import RecoveryTask
from services.wire.message import Message


class Moon(Message):
    mu: Annotated[float, Field(ge=0, le=1000)] = Field(default=1.0, description="Weight of the contrastive term.")
    temperature: Annotated[float, Field(gt=0, le=100)] = 0.5


class ContrastiveTraining(Moon, RecoveryTask):
    """Train with the contrastive term, against the model of the round before that the client keeps."""

    kind: Literal["contrastive_training"] = "contrastive_training"
