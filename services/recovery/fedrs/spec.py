"""Parameters of FedRS."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.recovery.task import RecoveryTask
from services.wire.message import Message


class FedRs(Message):
    alpha: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="Factor of the logit of a class that the client has no sample of; 1: no restriction.",
    )


class RestrictedTraining(FedRs, RecoveryTask):
    """Train with each class's logit scaled by α + (1 − α)·p_c / max p, p being the client's shares of the classes."""

    kind: Literal["restricted_training"] = "restricted_training"
