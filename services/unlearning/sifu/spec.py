"""Parameters of SIFU."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Message


class Sifu(Message):
    method: Literal["sifu"] = "sifu"
    epsilon: Annotated[float, Field(gt=0, le=1e6)] = 10.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.01
    noise: Annotated[float, Field(gt=0, le=1000)] = Field(default=0.05, description="σ of the noise on every weight.")
    contraction: Annotated[float, Field(gt=0, le=10)] = Field(
        default=1.0, description="B: how much of a past difference one round keeps. At most 1 needs convexity."
    )
