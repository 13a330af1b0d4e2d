"""Every erasure method by name, with what it promises and what it needs. The planner chooses by these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Method:
    guarantee: Literal["exact", "approximate"]
    summary: str
    needs_sub_cohorts: bool = False
    """Restarts from cohorts whose members are subsets of the fenced one's: trees and bi-model."""


METHODS: Final[dict[str, Method]] = {
    "retrain": Method("exact", "roll the cohorts with the client back to their newest model without it and train on"),
    "reinit": Method(
        "exact",
        "discard the cohorts with the client and restart them from the mean of the surviving cohorts inside them",
        needs_sub_cohorts=True,
    ),
}
"""Of methods that cost the same the planner takes the first."""
