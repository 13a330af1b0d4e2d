"""What re-initialisation is, promises and needs."""

from __future__ import annotations

from typing import Final

from services.methods.description import Unlearning

METHOD: Final = Unlearning(
    name="reinit",
    summary="discard the cohorts with the client and restart them from the mean of the surviving cohorts inside them",
    guarantee="exact",
    granularity="samples",
    needs_sub_cohorts=True,
)
