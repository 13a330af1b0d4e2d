"""Parameters of FedRecovery, and what it promises and needs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from services.unlearning.method import Method
from services.wire.message import Message


class FedRecovery(Message):
    method: Literal["fedrecovery"] = "fedrecovery"
    noise: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.001, description="σ of the Gaussian noise on every weight. It is stated, and certifies nothing."
    )


METHOD: Final = Method(
    "approximate",
    "subtract the leaver's share of each round's step, weighted by the steps' squared norms, and add noise",
    needs_remaining=False,
    needs_residuals=True,
    noisy_kernels=("remove_residuals",),
    spec=FedRecovery,
)
