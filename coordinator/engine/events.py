"""What was decided, in the past tense. Events carry what `evolve` needs; the journal keeps ids and digests of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from coordinator.engine.entities import (
    Blob,
    Certificate,
    Checkpoint,
    Cohort,
    CohortPhase,
    Contribution,
    Delivery,
    Erasure,
    Exclusion,
    Facts,
    Hold,
    Job,
    Line,
    Member,
    Parent,
    Round,
    Run,
    RunStatus,
    Subject,
    Task,
    Update,
)
from services.wire.v1.erasure import ErasureStatus


@dataclass(frozen=True, slots=True)
class RunCreated:
    run: Run


@dataclass(frozen=True, slots=True)
class CohortFormed:
    cohort: Cohort
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class RunPaused:
    run_id: UUID
    hold: Hold
    reason: str


@dataclass(frozen=True, slots=True)
class RunResumed:
    run_id: UUID


@dataclass(frozen=True, slots=True)
class RunEnded:
    run_id: UUID
    status: RunStatus
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SessionOpened:
    client_id: UUID
    at: datetime
    agent_version: str
    devices: list[dict[str, Any]]
    canary: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ClientRemoved:
    client_id: UUID


@dataclass(frozen=True, slots=True)
class MemberJoined:
    member: Member


@dataclass(frozen=True, slots=True)
class MemberLeft:
    cohort_id: UUID
    client_id: UUID


@dataclass(frozen=True, slots=True)
class RoundOpened:
    round: Round
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class QuorumAwaited:
    """The deadline passed below quorum, or at it: the round closes as soon as the quorum is in."""

    round_id: UUID


@dataclass(frozen=True, slots=True)
class RoundFilled:
    round_id: UUID


@dataclass(frozen=True, slots=True)
class RoundStarved:
    """Nobody who was asked can answer any more."""

    round_id: UUID


@dataclass(frozen=True, slots=True)
class OthersAsked:
    """Members who were not asked at first stand in for those who left."""

    round_id: UUID
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class RoundClosed:
    round_id: UUID
    update_ids: tuple[UUID, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class RoundAbandoned:
    round_id: UUID
    at: datetime


@dataclass(frozen=True, slots=True)
class TaskLeased:
    task_id: UUID
    lease_token: str
    at: datetime
    until: datetime
    base_round: int
    model_digest: str


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    task_id: UUID
    until: datetime
    progress: float


@dataclass(frozen=True, slots=True)
class TaskReleased:
    """The task can be claimed again by its client."""

    task_id: UUID
    reason: str
    not_before: datetime | None = None
    counts_as_failure: bool = False
    log_tail: str | None = None


@dataclass(frozen=True, slots=True)
class TaskPromoted:
    task_id: UUID


@dataclass(frozen=True, slots=True)
class TaskReissued:
    """A failed task gets a new chance because an operator resumed the run."""

    task_id: UUID


@dataclass(frozen=True, slots=True)
class TaskFailed:
    task_id: UUID
    reason: str
    log_tail: str | None


@dataclass(frozen=True, slots=True)
class TaskWithdrawn:
    """The client left: the round no longer counts on it."""

    task_id: UUID


@dataclass(frozen=True, slots=True)
class TasksRevoked:
    task_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class UpdateAccepted:
    update: Update


@dataclass(frozen=True, slots=True)
class UpdatesDiscarded:
    update_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class UpdateRefused:
    """An update came too late to count; it is only counted as such."""

    task_id: UUID
    round_id: UUID
    code: str


@dataclass(frozen=True, slots=True)
class ProgramAdvanced:
    cohort_id: UUID
    state: Mapping[str, Any]
    phase: CohortPhase
    awaiting: UUID | None


@dataclass(frozen=True, slots=True)
class JobRequested:
    job: Job


@dataclass(frozen=True, slots=True)
class JobSettled:
    job_id: UUID
    status: Literal["done", "failed", "cancelled"]
    error: str | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class JobReturned:
    job_id: UUID
    not_before: datetime
    error: str
    counts_as_failure: bool = True


@dataclass(frozen=True, slots=True)
class BlobRecorded:
    blob: Blob
    facts: Facts


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    checkpoint: Checkpoint
    contributions: tuple[Contribution, ...] = field(default=())
    parents: tuple[Parent, ...] = field(default=())
    residuals: str | None = None
    """Replace those that the cohort has."""


@dataclass(frozen=True, slots=True)
class CohortEnded:
    cohort_id: UUID
    phase: Literal["finished", "failed"]
    reason: str


@dataclass(frozen=True, slots=True)
class CohortWaits:
    """The cohort is ready for its next round; lock-step opens it together with the others'."""

    cohort_id: UUID
    state: Mapping[str, Any]
    ask: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CohortRetired:
    """The cohort's line ends here; nothing of it is served."""

    cohort_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class CohortRevived:
    """The cohort's program starts anew from its head, after the run had failed."""

    cohort_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class UpdatesLeftOut:
    """The round's new model does not contain these updates: they exceeded the run's bounds."""

    cohort_id: UUID
    round: int
    update_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class CohortMoved:
    """The cohort takes its parent's place in the tree."""

    cohort_id: UUID
    parent_id: UUID | None


@dataclass(frozen=True, slots=True)
class CohortRestarted:
    """The cohort's program starts anew, from the given models of other cohorts if there are any."""

    cohort_id: UUID
    sources: tuple[dict[str, Any], ...]
    round: int


@dataclass(frozen=True, slots=True)
class CohortFenced:
    cohort_id: UUID
    epoch: int
    head_id: UUID | None
    head_digest: str | None
    round: int
    sources: tuple[dict[str, Any], ...] = ()
    """Models of surviving cohorts to be re-initialised from, as {checkpoint_id, digest, weight}."""
    extra_rounds: int = 0
    recovery: Mapping[str, Any] | None = None
    """How the clients train until they are back where they were, when not as usual."""
    unlearning: Mapping[str, Any] | None = None
    """The method that runs first, and what it knows."""


@dataclass(frozen=True, slots=True)
class RoundRecalled:
    """A method asks who was in a model of the fenced line."""

    cohort_id: UUID
    checkpoint_id: UUID | None
    """None: the line has no such round."""


@dataclass(frozen=True, slots=True)
class CohortUnlearned:
    """The method is done: the run's own training goes on from the cohort's head, to the target of its lines."""

    cohort_id: UUID
    reason: str
    target_round: int
    extra_rounds: int


@dataclass(frozen=True, slots=True)
class UnlearningStopped:
    """The method gave up; the request says what is to be done."""

    cohort_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class RunReopened:
    """An ended run goes on because an erasure has something to retrain in it."""

    run_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class RunResized:
    run_id: UUID
    num_clients: int


@dataclass(frozen=True, slots=True)
class CheckpointsSuperseded:
    """These models contain a client that must be forgotten; they are never served again."""

    checkpoint_ids: tuple[UUID, ...]
    erasure_id: UUID


@dataclass(frozen=True, slots=True)
class ErasureFiled:
    erasure: Erasure
    subjects: tuple[Subject, ...]


@dataclass(frozen=True, slots=True)
class ErasureMoved:
    """The request is in another state."""

    erasure_id: UUID
    status: ErasureStatus
    reason: str | None = None
    fenced_at: datetime | None = None
    first_clean_at: datetime | None = None
    completed_at: datetime | None = None
    chosen: str | None = None
    """At the fence: the method that it is carried out with."""
    is_held: bool = False
    """requires_action: until somebody retries it."""
    duplicate_of: UUID | None = None
    """The request that it is carried out with from now on."""


@dataclass(frozen=True, slots=True)
class ClientErased:
    """The tombstone: every task of the client is barred from now on, but for those of the erasure's own method."""

    client_id: UUID
    erasure_id: UUID
    is_needed: bool = False
    """Whether that method asks it for work."""


@dataclass(frozen=True, slots=True)
class ClientReleased:
    """Nobody asks an erased client for anything any more."""

    client_id: UUID


@dataclass(frozen=True, slots=True)
class SamplesExcluded:
    """The client gets no task until its worker has acknowledged the digest of all that it must leave out."""

    exclusion: Exclusion
    digest: str


@dataclass(frozen=True, slots=True)
class ExclusionsHonoured:
    """The client's worker has in its ledger all that it must leave out."""

    client_id: UUID
    at: datetime
    unknown: Mapping[UUID, list[int]]
    """By request: some of the samples that the data set does not have."""


@dataclass(frozen=True, slots=True)
class ExclusionsRefused:
    """The client's worker cannot leave the samples out."""

    client_id: UUID
    problem: str


@dataclass(frozen=True, slots=True)
class LineFenced:
    line: Line


@dataclass(frozen=True, slots=True)
class LineClean:
    erasure_id: UUID
    cohort_id: UUID
    at: datetime


@dataclass(frozen=True, slots=True)
class LineAudited:
    erasure_id: UUID
    cohort_id: UUID
    audit: Mapping[str, Any]
    """As {passed, figures, checks}."""


@dataclass(frozen=True, slots=True)
class LineDone:
    erasure_id: UUID
    cohort_id: UUID
    at: datetime


@dataclass(frozen=True, slots=True)
class CertificateIssued:
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class DeliveryRequested:
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class DeliveryAttempted:
    """`next_attempt_at` None: it is settled, delivered without an error, else failed for good."""

    delivery_id: UUID
    at: datetime
    error: str | None
    next_attempt_at: datetime | None


Event = (
    RunCreated
    | CohortFormed
    | RunPaused
    | RunResumed
    | RunEnded
    | SessionOpened
    | ClientRemoved
    | MemberJoined
    | MemberLeft
    | RoundOpened
    | QuorumAwaited
    | RoundFilled
    | RoundStarved
    | OthersAsked
    | RoundClosed
    | RoundAbandoned
    | TaskLeased
    | LeaseRenewed
    | TaskReleased
    | TaskPromoted
    | TaskReissued
    | TaskFailed
    | TaskWithdrawn
    | TasksRevoked
    | UpdateAccepted
    | UpdatesDiscarded
    | UpdateRefused
    | ProgramAdvanced
    | JobRequested
    | JobSettled
    | JobReturned
    | BlobRecorded
    | CheckpointPublished
    | CohortEnded
    | CohortWaits
    | CohortRetired
    | CohortMoved
    | CohortRestarted
    | CohortRevived
    | UpdatesLeftOut
    | CohortFenced
    | RoundRecalled
    | CohortUnlearned
    | UnlearningStopped
    | RunReopened
    | RunResized
    | CheckpointsSuperseded
    | ErasureFiled
    | ErasureMoved
    | ClientErased
    | ClientReleased
    | SamplesExcluded
    | ExclusionsHonoured
    | ExclusionsRefused
    | LineFenced
    | LineClean
    | LineDone
    | LineAudited
    | CertificateIssued
    | DeliveryRequested
    | DeliveryAttempted
)
