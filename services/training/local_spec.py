"""Parameters of the local loop that a client runs between receiving a model and returning its delta."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Message


class LocalTraining(Message):
    epochs: Annotated[int, Field(ge=0, le=10_000)] = Field(default=1, description="0: return a zero delta (a dry run).")
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 32
    optimizer: Literal["sgd", "adamw", "adahessian"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Clip each gradient to this L2 norm."
    )
