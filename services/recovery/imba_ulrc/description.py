"""What Imba-ULRc is as a recovery."""

from __future__ import annotations

from typing import Final

from services.methods.description import ClientWork, Recovery
from services.recovery.imba_ulrc.spec import ImbaUlrc, OversampledTraining

METHOD: Final = Recovery(
    name="imba_ulrc",
    summary="clients make samples of the class that the erasure cost most, by SMOTE in the latent space of an encoder",
    spec=ImbaUlrc,
    recovery_rounds=10,
    work_per_update=1.2,
    preparation="encoder_epochs",
    class_parameter="skewed_class",
    most_samples=2.0,
    client_work={
        "oversampled_training": ClientWork("services.recovery.imba_ulrc.client:carry_out", OversampledTraining),
    },
)
