"""What can happen to a federation, as values. The shell hands them to `decide`, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from coordinator.engine.entities import Facts, Hold
from services.wire.v1.erasure import ErasureStatus
from services.wire.v1.runs import RunSpec

# --- operators --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateRun:
    run_id: UUID
    federation_id: UUID
    spec: RunSpec


@dataclass(frozen=True, slots=True)
class PauseRun:
    run_id: UUID
    hold: Hold
    reason: str
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class ResumeRun:
    run_id: UUID
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class CancelRun:
    run_id: UUID
    reason: str
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class JoinRun:
    run_id: UUID
    federation_id: UUID
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveClient:
    client_id: UUID


@dataclass(frozen=True, slots=True)
class FileErasure:
    erasure_id: UUID
    federation_id: UUID
    subjects: tuple[str, ...]
    requested_by: str
    legal_deadline: datetime
    salt: str
    scope: Literal["client", "samples"] = "client"
    samples: Mapping[str, list[int]] = field(default_factory=dict)
    method: str = "auto"
    params: Mapping[str, Any] = field(default_factory=dict)
    guarantee: Literal["exact", "approximate"] = "exact"
    regulation: str = "GDPR Art. 17"
    recovery_rounds: int | None = None
    fallback: Literal["retrain"] | None = None
    audit: Mapping[str, Any] | None = None
    needs_approval: bool = False
    callbacks: tuple[dict[str, Any], ...] = ()
    """As {url, secret}."""
    offline: tuple[str, ...] = ()
    """Subjects whose workers are not there now."""
    is_tombstoned: bool = False
    """The fence fell before the database was restored from an older backup: it falls again, whatever that says."""


@dataclass(frozen=True, slots=True)
class ApproveErasure:
    erasure_id: UUID
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class DenyErasure:
    erasure_id: UUID
    reason: str
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class CancelErasure:
    erasure_id: UUID
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class RetryErasure:
    """What stood in the way of the certificate is mended; purge and sign again."""

    erasure_id: UUID
    expected_version: int | None = None


# --- workers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSession:
    client_id: UUID
    agent_version: str
    devices: list[dict[str, Any]] = field(default_factory=list)
    canary: Mapping[str, Any] | None = None
    """That it carries in its data."""
    frees_tasks: bool = True
    """Whether tasks of the client's earlier life are handed out again at once; otherwise when their leases run out."""


@dataclass(frozen=True, slots=True)
class AcknowledgeExclusions:
    """The client's worker has in its ledger the samples that `digest` stands for, or says why it cannot."""

    client_id: UUID
    digest: str
    unknown: Mapping[UUID, list[int]] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimTasks:
    client_id: UUID
    run_id: UUID | None = None
    """Only tasks of this run: when those of another cannot be read."""


@dataclass(frozen=True, slots=True)
class RenewLease:
    task_id: UUID
    client_id: UUID
    lease_token: str
    progress: float = 0.0


@dataclass(frozen=True, slots=True)
class SubmitResult:
    task_id: UUID
    client_id: UUID
    lease_token: str
    digest: str | None
    num_samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailTask:
    task_id: UUID
    client_id: UUID
    lease_token: str
    retryable: bool
    reason: str
    log_tail: str = ""
    handed_back: bool = False


@dataclass(frozen=True, slots=True)
class RecordBlob:
    """All bytes of an announced blob are stored, and were looked at."""

    blob_id: UUID
    federation_id: UUID
    digest: str
    facts: Facts
    client_id: UUID | None = None
    """Who sent it for a task."""


# --- time -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseRanOut:
    task_id: UUID
    lease_token: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    round_id: UUID


# --- the engine to itself ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartProgram:
    cohort_id: UUID


@dataclass(frozen=True, slots=True)
class RecallRound:
    """A method waits for who was in a model of its line."""

    cohort_id: UUID
    checkpoint_id: UUID | None


@dataclass(frozen=True, slots=True)
class CollectRound:
    round_id: UUID


@dataclass(frozen=True, slots=True)
class OpenRounds:
    """All lock-step cohorts of the run may be ready for their next round."""

    run_id: UUID


@dataclass(frozen=True, slots=True)
class FenceErasure:
    """The tombstone is in the log; now fence."""

    erasure_id: UUID
    job_id: UUID


@dataclass(frozen=True, slots=True)
class ReviewErasure:
    erasure_id: UUID


@dataclass(frozen=True, slots=True)
class CompleteErasure:
    """Everything is purged and signed."""

    erasure_id: UUID
    job_id: UUID
    version: int
    """Of the request that the certificate is about; one that has moved on since needs another."""
    envelope: str


@dataclass(frozen=True, slots=True)
class HoldErasure:
    """A step outside the database failed. The certificate was refused, though everything planned is done: a person has
    to look. Or the step itself broke, like a tombstone for which there is no room: then it is tried again."""

    erasure_id: UUID
    job_id: UUID | None
    """The step's job, which is over; None when it will be tried again."""
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class AnnounceErasure:
    """Tell the request's callbacks what has become of it."""

    erasure_id: UUID
    change: str
    """A status, or `first_clean`."""
    status: ErasureStatus
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SettleDelivery:
    """What became of one attempt to deliver."""

    delivery_id: UUID
    job_id: UUID
    error: str | None
    """None: the receiver has it."""
    is_final: bool = False
    """The receiver wants no further attempt."""


@dataclass(frozen=True, slots=True)
class PlaceNewcomer:
    """The outbox's word that a newcomer is measured and can join a cluster."""

    run_id: UUID
    cohort_id: UUID
    job_id: UUID


@dataclass(frozen=True, slots=True)
class SettleRun:
    """The outbox's word that a cohort of the run has ended."""

    run_id: UUID
    job_id: UUID


@dataclass(frozen=True, slots=True)
class JobDone:
    """A kernel's result. `blob` describes the model it made, already in the store."""

    job_id: UUID
    lease_token: str
    blob: RecordBlob | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFailed:
    job_id: UUID
    lease_token: str
    error: str
    retryable: bool
    storage_full: bool = False


Message = (
    CreateRun
    | PauseRun
    | ResumeRun
    | CancelRun
    | JoinRun
    | RemoveClient
    | FileErasure
    | ApproveErasure
    | DenyErasure
    | CancelErasure
    | RetryErasure
    | FenceErasure
    | ReviewErasure
    | CompleteErasure
    | HoldErasure
    | AnnounceErasure
    | SettleDelivery
    | OpenRounds
    | OpenSession
    | AcknowledgeExclusions
    | ClaimTasks
    | RenewLease
    | SubmitResult
    | FailTask
    | RecordBlob
    | LeaseRanOut
    | DeadlinePassed
    | StartProgram
    | RecallRound
    | CollectRound
    | PlaceNewcomer
    | SettleRun
    | JobDone
    | JobFailed
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message with the instant of its transaction and the entropy that names what it creates."""

    message: Message
    now: datetime
    entropy: bytes
