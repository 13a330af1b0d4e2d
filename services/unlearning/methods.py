"""Every erasure method by name, with what it promises and what it needs. The planner chooses by these."""

from __future__ import annotations

from typing import Final

from services.unlearning.method import Method

__all__ = ["METHODS", "Method"]

METHODS: Final[dict[str, Method]] = {
    "reinit": Method(
        "exact",
        "discard the cohorts with the client and restart them from the mean of the surviving cohorts inside them",
        needs_sub_cohorts=True,
    ),
    "retrain": Method("exact", "roll the cohorts with the client back to their newest model without it and train on"),
}
