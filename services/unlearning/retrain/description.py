"""What retraining is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import Unlearning

METHOD: Final = Unlearning(
    name="retrain",
    summary="roll the cohorts with the client back to their newest model without it and train on",
    guarantee="exact",
    granularity="samples",
)
