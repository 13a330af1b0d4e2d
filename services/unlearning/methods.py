"""Every erasure method by name, with what it promises and what it needs. The planner chooses by these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from services.unlearning.rapid.spec import Rapid
from services.wire.message import Message


@dataclass(frozen=True, slots=True)
class Method:
    guarantee: Literal["exact", "approximate"]
    summary: str
    needs_sub_cohorts: bool = False
    """Restarts from cohorts whose members are subsets of the fenced one's: trees and bi-model."""
    spec: type[Message] = Message
    """Its parameters; none unless told otherwise."""
    work_per_update: float = 1.0
    """Time that a client needs for an update of the recovery, against one of the run itself."""


METHODS: Final[dict[str, Method]] = {
    "retrain": Method("exact", "roll the cohorts with the client back to their newest model without it and train on"),
    "reinit": Method(
        "exact",
        "discard the cohorts with the client and restart them from the mean of the surviving cohorts inside them",
        needs_sub_cohorts=True,
    ),
    "rapid": Method(
        "exact",
        "like retrain, with second-order steps at the clients until the round of the fence is reached again",
        spec=Rapid,
        work_per_update=2.0,
    ),
}
"""Of methods that cost the same the planner takes the first."""
