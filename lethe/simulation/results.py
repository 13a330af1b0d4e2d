"""What a simulation found out, as rows. All times are virtual seconds; nothing here depends on the machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class RoundRow:
    """A model that a cohort published."""

    row: ClassVar = "round"
    virtual_s: float
    cohort: str
    """`merged`: the run's merged model."""
    epoch: int
    """How many erasures have cut this cohort before."""
    round: int
    kind: Literal["init", "aggregate", "reinit", "merge", "forgotten"]
    accuracy: float | None
    """Accuracy on the scenario's test samples; None where the run did not judge."""
    loss: float | None
    participants: int
    client_s: float
    """Seconds of all participants together."""
    digest: str


@dataclass(frozen=True, slots=True)
class ServedRow:
    """What the run's top-level lines serve, by accuracy and by loss: changes with every published model and fence.

    A line without a model is left out; with none left all are None. A model that was not judged changes nothing.
    """

    row: ClassVar = "served"
    virtual_s: float
    best: float | None
    mean: float | None
    worst: float | None
    lines: int
    """How many there are that have not been retired."""
    best_loss: float | None = None
    mean_loss: float | None = None
    worst_loss: float | None = None


@dataclass(frozen=True, slots=True)
class ErasureRow:
    row: ClassVar = "erasure"
    subjects: list[str]
    method: str
    """The one it was carried out with; the one asked for if it never came to that."""
    status: str
    reason: str | None
    filed_s: float
    fenced_s: float | None
    first_clean_s: float | None
    completed_s: float | None
    cohorts: list[str]
    """The cohorts that were cut."""
    updates_redone: int
    """Answers of clients that went into the cut cohorts from the fence to completion (or to the end)."""
    client_s_redone: float


@dataclass(frozen=True, slots=True)
class SummaryRow:
    row: ClassVar = "summary"
    virtual_s: float
    status: str
    """The run's status; `stopped` when the scenario's stop rule or the caller ended the simulation."""
    reason: str | None
    client_updates: int
    client_s: float
    digests: dict[str, str]
    """The newest model of each cohort that is still there, by the cohort's name."""


Row = RoundRow | ServedRow | ErasureRow | SummaryRow


@dataclass(frozen=True, slots=True)
class Results:
    rounds: list[RoundRow]
    served: list[ServedRow]
    erasures: list[ErasureRow]
    summary: SummaryRow
    wall_s: float = field(default=0.0, compare=False)
    """Real seconds that it took; not written to the file."""
    training_s: float = field(default=0.0, compare=False)
    """The part of `wall_s` that is the clients' own work; 0 when other processes did it."""

    @property
    def rows(self) -> list[Row]:
        return [*self.rounds, *self.served, *self.erasures, self.summary]

    def reached(
        self, accuracy: float, *, after_s: float = 0.0, of: Literal["best", "mean", "worst"] = "best"
    ) -> float | None:
        """The first virtual second from `after_s` on at which the served accuracy was at least this."""
        found = (r.virtual_s for r in self.served if r.virtual_s >= after_s and (getattr(r, of) or 0.0) >= accuracy)
        return next(found, None)

    def fell_to(
        self, loss: float, *, after_s: float = 0.0, of: Literal["best", "mean", "worst"] = "best"
    ) -> float | None:
        """The first virtual second from `after_s` on at which the served loss was at most this."""
        losses = ((row.virtual_s, getattr(row, f"{of}_loss")) for row in self.served)
        return next((at for at, served in losses if at >= after_s and served is not None and served <= loss), None)

    def write(self, path: Path) -> None:
        """JSON lines; `row` says what each one is."""
        path.write_text("".join(line(row) + "\n" for row in self.rows), "utf-8")


def line(row: Row) -> str:
    return json.dumps({"row": row.row, **asdict(row)})
