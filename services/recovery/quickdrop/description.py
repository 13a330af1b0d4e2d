"""What QuickDrop is as a recovery."""

from __future__ import annotations

from typing import Final

from services.methods.description import ClientWork, Recovery
from services.recovery.quickdrop.spec import DistilledTraining, QuickDrop

METHOD: Final = Recovery(
    name="quickdrop",
    summary="clients train on a small set that is distilled from their samples by matching gradients",
    spec=QuickDrop,
    recovery_rounds=5,
    work_per_update=0.2,
    preparation="distillation_epochs",
    client_work={
        "distilled_training": ClientWork("services.recovery.quickdrop.client:carry_out", DistilledTraining),
    },
)
