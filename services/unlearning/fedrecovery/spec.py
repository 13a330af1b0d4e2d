"""Parameters of FedRecovery."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.wire.message import Message


class FedRecovery(Message):
    method: Literal["fedrecovery"] = "fedrecovery"
    noise: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.001, description="σ of the Gaussian noise on every weight. It is stated, and certifies nothing."
    )
