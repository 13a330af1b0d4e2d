"""What MOON is as a recovery."""

from __future__ import annotations

from typing import Final

from services.methods.description import ClientWork, Recovery
from services.recovery.moon.spec import ContrastiveTraining, Moon

METHOD: Final = Recovery(
    name="moon",
    summary="clients keep their representation near the global model's and away from their own of the round before",
    spec=Moon,
    recovery_rounds=10,
    work_per_update=1.7,
    client_work={
        "contrastive_training": ClientWork("services.recovery.moon.client:carry_out", ContrastiveTraining),
    },
)
