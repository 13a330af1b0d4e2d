"""What FedRS is as a recovery."""

from __future__ import annotations

from typing import Final

from services.methods.description import ClientWork, Recovery
from services.recovery.fedrs.spec import FedRs, RestrictedTraining

METHOD: Final = Recovery(
    name="fedrs",
    summary="clients train with a restricted softmax, which holds back the classes that they have few samples of",
    spec=FedRs,
    recovery_rounds=10,
    client_work={
        "restricted_training": ClientWork("services.recovery.fedrs.client:carry_out", RestrictedTraining),
    },
)
