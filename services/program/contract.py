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

from services.training.local_spec import LocalTraining
from services.wire.v1.runs import RunSpec, Selection
from services.wire.v1.work import TaskKind, Work


@dataclass(frozen=True, slots=True)
class Source:
    """A published model of another cohort and its weight (the samples behind it)."""

    checkpoint_id: UUID
    digest: str
    weight: float


@dataclass(frozen=True, slots=True)
class Participant:
    """One update inside the model that was the head at the fence, with its share of the round's weights."""

    client: str
    digest: str | None
    """None: the update is no longer stored."""
    share: float


@dataclass(frozen=True, slots=True)
class Movement:
    """How far a leaver moved the model in one round of the fenced line."""

    round: int
    client: str
    share: float
    """The update's weight, as a share of the sum of the round's weights."""
    scale: float
    """The server's learning rate in that round."""
    distance: float | None
    """L2 norm between the round's new model and the leaver's; None: it was not measured."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """What an unlearning program knows of the line that it is to mend. Everything here is quarantined: it may be read
    by this program and is never served."""

    leavers: tuple[str, ...]
    params: Mapping[str, Any]
    """The method's parameters as the request gave them; the program reads them with its own spec."""
    seed: int
    """Drawn at the fence, deleted at the end, never published: whoever knows it could take the noise off again."""
    initial: str
    """Digest of the line's round 0."""
    head: str
    """Digest of the model at the fence, with the leavers in it."""
    round: int
    base: str | None = None
    """Digest of the model that the head's round started from, if it is still stored."""
    scale: float = 1.0
    """The server's learning rate in the head's round."""
    participants: tuple[Participant, ...] = ()
    """Clients that took part in the head's round, in name order."""
    history: tuple[int, ...] = ()
    """Rounds whose updates can be recalled, ascending."""
    residuals: str | None = None
    """Digest of the cohort's running vectors (FedRecovery)."""
    movements: tuple[Movement, ...] = ()
    """How far the leavers moved the model, by round and name, for methods that need distances."""
    checkpoints: Mapping[int, str] = field(default_factory=dict)
    """Stored models of the line by round, for methods that need distances."""


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
    """The time from handing out the model to receiving the answer."""


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
    residuals: str | None = None
    """Digest of the running vectors up to the head, where the run keeps them."""
    erasure: Erasure | None = None
    """Set for unlearning programs."""
    compared_with: str | None = None
    """Digest of the model from before, given to the program that finds which class lost most."""
    is_part: bool = False
    """Whether the cohort is a part of a larger one, so that nobody is served its models."""


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stream:
    """Asynchronous asking: keep clients busy, collect whenever enough updates are buffered."""

    in_flight: int
    buffer: int
    staleness_bound: int


@dataclass(frozen=True, slots=True)
class LeaverTask:
    """Work on the same model for a client that is being erased; only its own erasure's program may ask for it."""

    client: str
    kind: TaskKind
    work: Work | None = None
    """None for train and evaluate."""


@dataclass(frozen=True, slots=True)
class AskClients:
    """Ask `num_clients` members for a kind of work on `model`; resumes with `Collected`.

    Without `stream` the round closes when all have answered, or when `quorum` have and the deadline has passed. With
    it, the round closes when the buffer is full, and unfinished work goes on into the next round.

    With `clients` these members are asked instead of drawn ones; whoever is no longer a member is left out. `leavers`
    are asked besides (`num_clients` may then be 0) and count as answers. With `close_at_deadline` the round closes at
    its deadline, or when nobody is left who could answer, with whatever there is, even nothing: the program judges.
    """

    kind: TaskKind
    round: int
    model: str
    num_clients: int
    quorum: int
    deadline_s: float | None = None
    stream: Stream | None = None
    clients: tuple[str, ...] | None = None
    local: LocalTraining | None = None
    """Instead of the run's own local training."""
    work: Work | None = None
    """Parameters of kinds other than train and evaluate."""
    leavers: tuple[LeaverTask, ...] = ()
    close_at_deadline: bool = False
    selection: Selection | None = None
    """Draws members instead of the run's own policy."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Look up who contributed to a past round of the fenced line; resumes with `Recalled` in the same transaction."""

    round: int


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
    digest: str | None = None
    """What was added instead of the update itself: the calibrated one, which replaces it in the history."""
    distance: float | None = None
    """L2 norm between the new model and the client's, where the run measures it."""
    factor: float | None = None
    """The factor that scaled the update down to the run's largest norm; None: it was added as it came."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Make a model the cohort's head, with its lineage; resumes with `Published` in the same transaction."""

    digest: str
    round: int
    kind: Literal["init", "aggregate", "reinit", "merge", "forgotten"]
    """forgotten: an approximate method made it; its lineage records the leavers as forgotten, not as absent."""
    contributions: tuple[Contribution, ...] = ()
    sources: tuple[Source, ...] = ()
    scale: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    residuals: str | None = None
    """Digest of the running vectors up to this model, where the run keeps them; they replace the older ones."""
    left_out: tuple[UUID, ...] = ()
    """Updates that were taken for this model and are not in it: they exceeded the run's bounds."""


@dataclass(frozen=True, slots=True)
class FormCohorts:
    """Profiling is over: the run's cohorts are formed from this assignment (client -> cluster indices)."""

    assignment: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class JoinCluster:
    """A newcomer is measured: it joins the nearest cluster that has room, by the `distances` in the program's state."""


@dataclass(frozen=True, slots=True)
class ProposeStop:
    """The line is as good and as steady as the run's stop rule asks for. If the best line of the run is, every line
    stops; else this one resumes with `Overruled`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)
    """What it found, where it was started to find something."""


@dataclass(frozen=True, slots=True)
class Abort:
    reason: str


Step = AskClients | Recall | Compute | Publish | FormCohorts | JoinCluster | ProposeStop | Finish | Abort

# --- outcomes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """The closed set of answers, in the order of the clients' names."""

    updates: tuple[UpdateRef, ...]


@dataclass(frozen=True, slots=True)
class Recalled:
    """The stored updates of the round without those of the leavers, in the order of the clients' names. Their digests
    are inputs for kernels like any other. Empty when nothing of the round is left."""

    updates: tuple[UpdateRef, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    digest: str | None
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Published:
    pass


@dataclass(frozen=True, slots=True)
class Overruled:
    """Another line of the run is better, and does not meet the stop rule: all go on."""


Outcome = Collected | Recalled | Computed | Published | Overruled

S = TypeVar("S", bound=BaseModel)


class Program(Protocol[S]):
    state_type: type[S]

    def start(self, view: CohortView) -> tuple[S, Step]: ...

    def resume(self, state: S, outcome: Outcome, view: CohortView) -> tuple[S, Step]: ...
