"""What an erasure method promises and needs. The planner, the preview and the certificate go by this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.wire.message import Message


@dataclass(frozen=True, slots=True)
class Method:
    guarantee: Literal["exact", "approximate"]
    summary: str
    needs_sub_cohorts: bool = False
    """Restarts from cohorts whose members are subsets of the fenced one's: trees and bi-model."""
    granularity: Literal["client", "samples"] = "client"
    """The smallest thing it can forget."""
    spec: type[Message] = Message
    """Its parameters; none unless told otherwise."""
    work_per_update: float = 1.0
    """Time that a client needs for an update of the recovery, against one of the run itself."""
    recovery_rounds: int = 0
    """Rounds of ordinary training after it when the request does not say, at most as many as the line had."""
    needs_leaver: bool = False
    """The leaver's agent does a part of the work, so it must be online and willing."""
    needs_remaining: bool = True
    """Other clients of the cohort have to train, in the method itself or in the recovery that it cannot do without."""
    needs_history: bool = False
    """Reads the update history of the rounds it walks through."""
    needs_residuals: bool = False
    """Reads the running vectors that a run keeps when `history.residuals` is set."""
    needs_distances: bool = False
    """Reads the distance of each update from its round's step, kept when `history.distances` is set."""
    noisy_kernels: tuple[str, ...] = ()
    """Draw noise from a seed among their parameters. Whoever knew it could take the noise off again: the purge drops
    what they were told."""

    @property
    def needs(self) -> list[str]:
        """In words, as discovery lists them."""
        names = ("sub_cohorts", "leaver", "remaining", "history", "residuals", "distances")
        return [name.replace("_", "-") for name in names if getattr(self, f"needs_{name}")]
