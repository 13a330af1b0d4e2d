"""What a training or unlearning method may ask of the engine, and what it is told.

A program never sees a tensor, a clock or a database. `start` and `resume` return its new state, which the engine
stores, and one step of a closed set, which the engine carries out. History and results reach it as references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

from pydantic import BaseModel

from services.wire.v1.runs import RunSpec
from services.wire.v1.work import TaskKind


@dataclass(frozen=True, slots=True)
class Source:
    """A published model of another cohort and its weight (the samples behind it)."""

    checkpoint_id: UUID
    digest: str
    weight: float


@dataclass(frozen=True, slots=True)
class UpdateRef:
    """One client's answer: the update's digest (None for figures only) and what it was trained from."""

    update_id: UUID
    client: str
    digest: str | None
    num_samples: int
    base_round: int
    metrics: Mapping[str, float]
    seconds: float = 0.0
    """From handing out the model to receiving the answer."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """What the run's clusters were formed from, as far as it is kept: a newcomer is measured against it."""

    updates: tuple[UpdateRef, ...]
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round of this line from before its last fence: the model it made, and the kept updates without the leavers."""

    digest: str
    updates: tuple[UpdateRef, ...]


@dataclass(frozen=True, slots=True)
class CohortView:
    """What a program knows of its cohort when it starts (again)."""

    name: str
    num_members: int
    num_members_of_run: int
    spec: RunSpec
    head: str | None
    """Digest of the model to go on from; None: there is none yet."""
    round: int
    """The round of that model; 0 is the initial one. Without a model: the round to start counting from."""
    sources: tuple[Source, ...] = ()
    """Models of other cohorts to start from, when there is no head: a merge, or a re-initialisation."""
    extra_rounds: int = 0
    """Rounds granted beyond the stop rule."""
    profiled: Profiled | None = None
    """Given to the program of a newcomer."""
    history: tuple[PastRound, ...] = ()
    """Given to `exact_fun` when it starts again after a fence: the rounds after `head`, in order."""


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stream:
    """Asynchronous asking: keep clients busy, collect whenever enough updates are buffered."""

    in_flight: int
    buffer: int
    staleness_bound: int


@dataclass(frozen=True, slots=True)
class AskClients:
    """Ask `num_clients` members for a kind of work on `model`; resumes with `Collected`.

    Without `stream` the round closes when all have answered, or when `quorum` have and the deadline has passed. With
    it, the round closes when the buffer is full, and unfinished work goes on into the next round.
    """

    kind: TaskKind
    round: int
    model: str
    num_clients: int
    quorum: int
    deadline_s: float | None = None
    stream: Stream | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a kernel over stored blobs; resumes with `Computed`. Equal parameters give equal bytes."""

    kernel: str
    params: Mapping[str, Any]
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contribution:
    """An update inside a model, with the weight the kernel was given."""

    update_id: UUID
    client: str
    weight: float
    staleness: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Make a model the cohort's head, with its lineage; resumes with `Published` in the same transaction."""

    digest: str
    round: int
    kind: Literal["init", "aggregate", "reinit", "merge"]
    contributions: tuple[Contribution, ...] = ()
    sources: tuple[Source, ...] = ()
    scale: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FormCohorts:
    """Profiling is over: the run's cohorts are formed from this assignment (client -> cluster indices)."""

    assignment: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class JoinCluster:
    """A newcomer is measured: it joins the nearest cluster that has room, by the `distances` in the program's state."""


@dataclass(frozen=True, slots=True)
class Finish:
    reason: str


@dataclass(frozen=True, slots=True)
class Abort:
    reason: str


Step = AskClients | Compute | Publish | FormCohorts | JoinCluster | Finish | Abort

# --- outcomes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """The closed set of answers, in the order of the clients' names."""

    updates: tuple[UpdateRef, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    digest: str | None
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Published:
    pass


Outcome = Collected | Computed | Published

S = TypeVar("S", bound=BaseModel)


class Program(Protocol[S]):
    state_type: type[S]

    def start(self, view: CohortView) -> tuple[S, Step]: ...

    def resume(self, state: S, outcome: Outcome, view: CohortView) -> tuple[S, Step]: ...
