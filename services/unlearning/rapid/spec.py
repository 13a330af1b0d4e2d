"""Parameters of rapid retraining."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from services.wire.message import Message


class Rapid(Message):
    warmup_rounds: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=10, description="J0: so many rounds of the recovery train as the run does, before curvature is used."
    )
    first_order_every: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=5, description="T0: after the warm-up, every n-th round trains as the run does; 1: all of them."
    )
    learning_rate: Annotated[float, Field(gt=0, le=100)] = Field(
        default=0.01, description="Of the rounds that use AdaHessian."
    )
