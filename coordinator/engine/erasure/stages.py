"""The stages in which a cohort forgets: unlearn, recover, audit.

`Unlearn`: an approximate method takes the leavers out of the cohort's model; exact methods have no such stage, because
the fence alone takes the leavers out. `Recover`: the cohort trains until it has the round again that it had. The audit
measures what an approximate method has left of the leavers. Stages that run are kept with the cohort; what the audit
found is kept with the request's `AffectedCohort`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from services.audit.verdict import Check, Figures, Outcome
from services.program import contract

PLAIN: Final = "plain"
"""The recovery in which clients train as they always do."""


@dataclass(frozen=True, slots=True)
class Recover:
    """The cohort trains until it reaches `until_round`."""

    until_round: int
    method: str = PLAIN
    """How clients train meanwhile."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of that method."""
    num_rounds: int = 0
    """The least number of rounds that it takes, wherever it begins."""
    from_round: int = 0
    """The round of the model that it began with."""

    def begun(self, at_round: int) -> Recover:
        """The recovery once it is known which model it begins with."""
        return replace(self, from_round=at_round, until_round=max(self.until_round, at_round + self.num_rounds))


@dataclass(frozen=True, slots=True)
class Unlearn:
    """A method runs in place of the cohort's training. Everything that it names is quarantined: this method may read
    it, nobody is served it, and the purge deletes it."""

    erasure_id: UUID
    method: str
    head_id: UUID
    """The checkpoint that the cohort had at the fence."""
    forgets: tuple[UUID, ...]
    """The clients that the method takes out."""
    rounds: Mapping[int, UUID]
    """Checkpoints whose updates can be recalled, by round."""
    facts: contract.Erasure
    """What the method's program is told."""
    then: Recover
    """The stage that follows."""
    stopped: str | None = None
    """Why the method gave up; None: it is at work."""


@dataclass(frozen=True, slots=True)
class LeaverReport:
    """What the audit found about one leaver, and the same figures of the model before the erasure."""

    verdict: Outcome
    figures: Figures
    before: Figures


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the audit of a cohort found."""

    verdict: Outcome
    figures: Figures
    """The mean figures of clients who remain."""
    leavers: Mapping[str, LeaverReport] = field(default_factory=dict)
    """What was found about each leaver, by name."""
    checks: tuple[Check, ...] = ()

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"


@dataclass(frozen=True, slots=True)
class CleanModel:
    """The newest model of a cohort without the leavers: what is left when an approximate method fails."""

    id: UUID
    digest: str
    round: int
