"""Records of training: clients, runs, cohorts, rounds, tasks, updates, and checkpoints with their lineage.

Tasks                                     Rounds                   Runs
  standby ─► ready ─► leased ─► done        open ─► closed           running ◄─► paused
                 ▲      │  └──► failed       └────► abandoned           └─► completed | failed | cancelled
                 └──────┘  (lease lost, retry)
  standby | ready | leased ─► revoked       (round closed, cohort fenced, run ended)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

from coordinator.engine.entities.incentives import Allotment
from coordinator.engine.erasure.stages import Recover, Unlearn
from services.methods.shared import FIND_CLASS
from services.program.contract import AskClients, Source
from services.selection.question import Observed
from services.wire.v1.runs import RunSpec
from services.wire.v1.work import TaskKind

TaskStatus = Literal["standby", "ready", "leased", "done", "failed", "revoked"]
OPEN_TASK: frozenset[TaskStatus] = frozenset({"standby", "ready", "leased"})
RunStatus = Literal["running", "paused", "completed", "failed", "cancelled"]
ENDED: frozenset[RunStatus] = frozenset({"completed", "failed", "cancelled"})
GIVEN_UP: frozenset[RunStatus] = frozenset({"failed", "cancelled"})
"""Nothing is trained in such a run any more: its cohorts serve what is clean, or nothing."""
Hold = Literal["operator", "quorum", "storage-full"]
CohortPhase = Literal["starting", "waiting", "asking", "computing", "finished", "failed", "retired"]
CohortKind = Literal["line", "root", "inner", "leaf", "profile", "merge"]
CheckpointKind = Literal["init", "aggregate", "reinit", "merge", "forgotten"]
UpdateStatus = Literal["buffered", "consumed", "discarded"]


@dataclass(frozen=True, slots=True)
class Client:
    table: ClassVar = "clients"
    id: UUID
    federation_id: UUID
    name: str
    status: Literal["active", "removed", "erased"]
    created_at: datetime
    last_seen_at: datetime | None = None
    agent_version: str | None = None
    devices: list[Any] = field(default_factory=list)
    exclusions: str | None = None
    """Digest of all samples that it must leave out; None: there are none."""
    exclusions_acked: str | None = None
    """The digest that its worker acknowledged in this session. While they differ, it gets no task."""
    needed_by: UUID | None = None
    """erased: the request whose method or audit still asks it for work; without one it is shut out."""
    canary: Mapping[str, Any] | None = None
    """The backdoor that it carries in its data, registered when it was enrolled or by its worker."""
    max_samples: int | None = None
    """The most samples that it may say it used, agreed when it was enrolled; None: any number."""
    superseded_at: datetime | None = None
    """The newest fence that took models away which its worker may have in its cache."""
    dropped_at: datetime | None = None
    """The fence up to which its worker has said, in this session, that it dropped them."""
    resources: Mapping[str, Any] | None = None
    """What it declared that a round costs it (services/incentive/spec.py)."""

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class Run:
    table: ClassVar = "runs"
    id: UUID
    federation_id: UUID
    name: str
    spec: RunSpec
    status: RunStatus
    created_at: datetime
    num_clients: int = 0
    version: int = 1
    hold: Hold | None = None
    reason: str | None = None
    ended_at: datetime | None = None

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class NextRound:
    """The cohort is ready for its next round, and waits for the others of its group."""

    ask: AskClients


@dataclass(frozen=True, slots=True)
class StartFrom:
    """The cohort starts from models of other cohorts: it is re-initialised, or a merge."""

    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Selecting:
    """The cohort's selection policy works out who takes part in this round, which opens then."""

    held: AskClients


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selection policy knows of the cohort's clients beyond their names. It is made of what they sent."""

    policy: Mapping[str, Any]
    """The policy, with its parameters."""
    state: str | None = None
    """Digest of what its kernel wrote."""
    clients: tuple[str, ...] = ()
    """Whom the state is about."""
    order: tuple[str, ...] = ()
    """The members as the kernel has ordered them for the newest round, the best first."""
    observed: Observed | None = None
    """What the last round brought, where the policy learns from it."""
    failed: str | None = None
    """Why its kernel gave up; lots are drawn since."""

    @property
    def name(self) -> str:
        return str(self.policy["policy"])


@dataclass(frozen=True, slots=True)
class Cohort:
    """A set of clients that share one model line."""

    table: ClassVar = "cohorts"
    id: UUID
    run_id: UUID
    name: str
    epoch: int
    phase: CohortPhase
    program: str
    num_members: int
    num_clients_of_run: int = 0
    """How many took part in the run when its members last changed: what asynchronous buffers are scaled by. Who joins
    or leaves elsewhere changes nothing here."""
    kind: CohortKind = "line"
    parent_id: UUID | None = None
    """The next larger cohort of its tree."""
    group: str = ""
    is_lockstep: bool = False
    """Rounds open together with those of the other cohorts of its group."""
    pending: NextRound | StartFrom | Selecting | None = None
    extra_rounds: int = 0
    """Rounds beyond the run's stop rule, granted to recover from an erasure; negative where the run stopped earlier."""
    recovery: Recover | None = None
    """The recovery that its last erasure has begun. It stays when it is over, until the next fence."""
    unlearning: Unlearn | None = None
    """The method of an erasure that runs in place of `program`."""
    residuals: str | None = None
    """Digest of the running vectors that fedrecovery needs; an erasure drops them."""
    selection: Selection | None = None
    """What its selection policy knows of its clients; a fence drops it."""
    program_state: Mapping[str, Any] | None = None
    awaiting: UUID | None = None
    """The round or job whose outcome resumes the program."""
    stream_round_id: UUID | None = None
    """The newest asynchronous round: what its model is, unfinished tasks are rebound to at claim."""
    num_buffered: int = 0
    """Asynchronous updates accepted and not yet consumed by a round."""
    head_id: UUID | None = None
    head_digest: str | None = None
    round: int = 0
    reason: str | None = None
    allotment: Allotment | None = None
    """The job that it works for, where the federation divides its clients among jobs."""

    @property
    def key(self) -> UUID:
        return self.id

    @property
    def num_serving(self) -> int:
        """How many of its members may be asked (allocation.who_serves)."""
        if self.allotment is None or self.kind == "profile":
            return self.num_members
        return self.allotment.num_clients or self.num_members

    @property
    def active_program(self) -> str:
        """The program that takes its steps now."""
        if self.unlearning is not None:
            return self.unlearning.method
        return FIND_CLASS if self.finds_class else self.program

    @property
    def recovering(self) -> Recover | None:
        """The recovery that its next round belongs to."""
        return None if self.recovery is None else self.recovery.at(self.round + 1)

    @property
    def is_recovering(self) -> bool:
        return self.recovery is not None and self.recovery.last_round > self.round

    @property
    def finds_class(self) -> bool:
        """Whether the class has to be found first that the recovery is about."""
        stage = self.recovering if self.unlearning is None and self.head_id is not None else None
        return stage is not None and stage.compared_with is not None

    @property
    def sources(self) -> tuple[Source, ...]:
        """The models of other cohorts that it is about to start from."""
        return self.pending.sources if isinstance(self.pending, StartFrom) else ()

    @property
    def waits_for_group(self) -> bool:
        """Whether its rounds of training open with those of its group; an erasure's method opens its own."""
        return self.is_lockstep and self.unlearning is None


@dataclass(frozen=True, slots=True)
class Member:
    table: ClassVar = "members"
    cohort_id: UUID
    client_id: UUID
    name: str
    active: bool = True
    joined: bool = False
    """Whether it came when the run was going; draws among the others do not depend on it."""
    allotted: bool = True
    """Whether it serves the cohort's job in this period; it may serve another instead."""

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.cohort_id, self.client_id


@dataclass(frozen=True, slots=True)
class Round:
    """One asking of clients."""

    table: ClassVar = "rounds"
    id: UUID
    run_id: UUID
    cohort_id: UUID
    epoch: int
    number: int
    kind: TaskKind
    status: Literal["open", "closed", "abandoned"]
    model_digest: str
    quorum: int
    num_selected: int
    opened_at: datetime
    due_at: datetime | None = None
    staleness_bound: int | None = None
    """Set for asynchronous rounds only."""
    num_open: int = 0
    num_received: int = 0
    num_failed: int = 0
    num_late: int = 0
    waiting_for_quorum: bool = False
    close_at_deadline: bool = False
    """The round closes at its deadline, or when nobody is left who could answer, with whatever there is."""
    closed_at: datetime | None = None

    @property
    def key(self) -> UUID:
        return self.id

    @property
    def is_stream(self) -> bool:
        return self.staleness_bound is not None


@dataclass(frozen=True, slots=True)
class Task:
    table: ClassVar = "tasks"
    id: UUID
    run_id: UUID
    cohort_id: UUID
    round_id: UUID
    client_id: UUID
    client_name: str
    kind: TaskKind
    status: TaskStatus
    epoch: int
    round: int
    base_round: int
    """The round of the model the client trains from; bound at claim for asynchronous rounds."""
    model_digest: str
    position: int
    """Order among the standby tasks of a round."""
    local: Mapping[str, Any] | None = None
    """How to train, when not as the run does."""
    work: Mapping[str, Any] | None = None
    """Parameters of kinds other than train and evaluate."""
    attempt: int = 0
    num_failures: int = 0
    lease_token: str | None = None
    leased_at: datetime | None = None
    due_at: datetime | None = None
    """leased: when the lease runs out; ready: not before."""
    progress: float = 0.0
    result_digest: str | None = None
    failure: str | None = None
    log_tail: str | None = None

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class Update:
    """A client's accepted answer to one task."""

    table: ClassVar = "updates"
    id: UUID
    run_id: UUID
    cohort_id: UUID
    round_id: UUID
    task_id: UUID
    client_id: UUID
    client_name: str
    kind: TaskKind
    status: UpdateStatus
    epoch: int
    base_round: int
    base_digest: str
    digest: str | None
    num_samples: int
    metrics: Mapping[str, float]
    received_at: datetime
    seconds: float = 0.0
    """The time from handing out the model to receiving the answer."""
    consumed_by: UUID | None = None
    """The round that used it; for an asynchronous update often a later one than it was asked in."""
    stored: bool = True
    num_bytes: int | None = None
    """How large the update was. None of figures, and of what older releases accepted."""

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class Checkpoint:
    table: ClassVar = "checkpoints"
    id: UUID
    run_id: UUID
    cohort_id: UUID
    epoch: int
    round: int
    kind: CheckpointKind
    digest: str
    base_id: UUID | None
    scale: float
    metrics: Mapping[str, float]
    created_at: datetime
    superseded_by: UUID | None = None
    """The first erasure that made it unservable; which others forget it too, the lineage says."""
    stored: bool = True
    forgets: list[str] = field(default_factory=list)
    """forgotten: ids of the clients that the method took out. The lineage of all others goes on through it."""

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class Contribution:
    """An edge of the lineage: this update, with this weight, is in that checkpoint."""

    table: ClassVar = "contributions"
    checkpoint_id: UUID
    update_id: UUID
    client_id: UUID
    position: int
    weight: float
    staleness: int
    digest: str | None = None
    """What was added instead of the update itself, and is kept in its place: a calibrated one."""
    distance: float | None = None
    """L2 norm between the new model and the client's, where the run measures it."""
    factor: float | None = None
    """The factor that scaled the update down to the run's largest norm; None: it was added as it came."""

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.checkpoint_id, self.update_id


@dataclass(frozen=True, slots=True)
class Parent:
    """An edge of the lineage: that model, with this weight, is in this merged or re-initialised one."""

    table: ClassVar = "parents"
    checkpoint_id: UUID
    parent_id: UUID
    position: int
    weight: float

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.checkpoint_id, self.parent_id
