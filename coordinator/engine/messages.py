"""What can happen to a federation, as values. The shell hands them to `decide`, one at a time.

Each message says what is replied to it (`Message[Reply]`) and what has to be loaded before it can be decided.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

from coordinator.engine.entities import Blob, Client, Erasure, Facts, Federation, Hold, Party, Run
from coordinator.engine.erasure.stages import RecoveryWanted
from coordinator.engine.needs import MAX_NAMED, Needs
from coordinator.engine.replies import Accepted, FailureNoted, Granted, Renewed
from services.core.digests import mentioned_in
from services.incentive.spec import Incentives, Strategy
from services.wire.v1.erasure import ErasureStatus, Fallback, Ground
from services.wire.v1.runs import RunSpec, policy_of

Reply = TypeVar("Reply", covariant=True)


class Message(ABC, Generic[Reply]):
    """Something that happened, or that somebody wants. It is decided with a reply of the type that it names."""

    __slots__ = ()

    @abstractmethod
    def add_needs(self, needs: Needs) -> None:
        """Say what has to be loaded before this can be decided."""


def needs_of(messages: Iterable[Message[Any]]) -> Needs:
    needs = Needs()
    for message in messages:
        message.add_needs(needs)
    return needs


# --- operators --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateRun(Message[Run]):
    run_id: UUID
    federation_id: UUID
    spec: RunSpec

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)
        if self.spec.clients is not None and len(self.spec.clients) <= MAX_NAMED:
            needs.mentioned.update((self.federation_id, name) for name in self.spec.clients)
        else:
            needs.federations.add(self.federation_id)
        named = (self.spec.init, self.spec.validation.data, *policy_of(self.spec.selection).blobs().values())
        needs.named.update((self.federation_id, digest) for digest in named if digest is not None)
        if self.spec.init is not None:
            needs.models.add(self.spec.init)
        needs.allocating.add(self.federation_id)


@dataclass(frozen=True, slots=True)
class PauseRun(Message[Run]):
    run_id: UUID
    hold: Hold
    reason: str
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class ResumeRun(Message[Run]):
    run_id: UUID
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)
        needs.resuming.add(self.run_id)


@dataclass(frozen=True, slots=True)
class CancelRun(Message[Run]):
    run_id: UUID
    reason: str
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class RecoverRun(Message[Run]):
    """Somebody wants the next rounds of a run to be those of a recovery, without an erasure."""

    run_id: UUID
    recovery: RecoveryWanted
    num_rounds: int | None = None
    compared_with: str | None = None
    """Digest of the run's own model that the class which lost most is found by comparing with."""
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class JoinRun(Message[Run]):
    run_id: UUID
    federation_id: UUID
    clients: tuple[str, ...]

    def add_needs(self, needs: Needs) -> None:
        needs.merging.add(self.run_id)
        needs.joining.update((self.federation_id, name) for name in self.clients)
        needs.allocating.add(self.federation_id)


@dataclass(frozen=True, slots=True)
class ChangeAllocation(Message[Federation]):
    """From now on the federation divides its clients among jobs in this way, or not at all."""

    federation_id: UUID
    allocation: Strategy | None
    incentives: Incentives

    def add_needs(self, needs: Needs) -> None:
        needs.governed.add(self.federation_id)


@dataclass(frozen=True, slots=True)
class RemoveClient(Message[None]):
    client_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.leaving.add(self.client_id)


@dataclass(frozen=True, slots=True)
class FileErasure(Message[Erasure]):
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
    recovery: RecoveryWanted | None = None
    """None: plain."""
    fallback: Fallback | None = None
    audit: Mapping[str, Any] | None = None
    needs_approval: bool = False
    """Whether it asks for approval; its federation may demand it of every request."""
    filed_by: Party | None = None
    ground: Ground | None = None
    external_ref: str | None = None
    callbacks: tuple[dict[str, Any], ...] = ()
    """Each callback as {url, secret}."""
    offline: tuple[str, ...] = ()
    """Subjects whose workers are not there now."""
    reward: float | None = None
    is_tombstoned: bool = False
    """The fence fell before the database was restored from an older backup: it falls again, whatever that says."""

    def add_needs(self, needs: Needs) -> None:
        needs.erasures.add(self.erasure_id)
        needs.leavers.update((self.federation_id, name) for name in self.subjects)
        needs.filings.add(self.federation_id)
        needs.all_stay &= self.scope == "samples"
        needs.named.update((self.federation_id, digest) for digest in mentioned_in(self.params))


@dataclass(frozen=True, slots=True)
class ApproveErasure(Message[Erasure]):
    erasure_id: UUID
    by: Party
    made_by: tuple[UUID, ...] = ()
    """The credentials that made the decider's: who created or rotated it, who made that one, and so on."""
    reason: str | None = None
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.begun.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class DenyErasure(Message[Erasure]):
    erasure_id: UUID
    reason: str
    by: Party
    made_by: tuple[UUID, ...] = ()
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.erasures.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class RestoreErasure(Message[Erasure]):
    """The log of tombstones has the fence of a request that this database, which was put back, still has as one that
    awaits approval. It goes on; nobody approves it by that."""

    erasure_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.begun.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class ExtendErasure(Message[Erasure]):
    """Grant a request another legal deadline, once."""

    erasure_id: UUID
    until: datetime
    reason: str
    by: Party
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.announced.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class CancelErasure(Message[Erasure]):
    erasure_id: UUID
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.erasures.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class RetryErasure(Message[Erasure]):
    """What stood in the way of the certificate is mended; purge and sign again."""

    erasure_id: UUID
    expected_version: int | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.reviews.add(self.erasure_id)
        needs.begun.add(self.erasure_id)


# --- workers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSession(Message[Client]):
    client_id: UUID
    agent_version: str
    devices: list[dict[str, Any]] = field(default_factory=list)
    canary: Mapping[str, Any] | None = None
    """The canary that the client carries in its data."""
    frees_tasks: bool = True
    """Whether tasks of the client's earlier life are handed out again at once; otherwise when their leases run out."""

    def add_needs(self, needs: Needs) -> None:
        (needs.restarting if self.frees_tasks else needs.opening).add(self.client_id)


@dataclass(frozen=True, slots=True)
class AcknowledgeExclusions(Message[None]):
    """The client's worker has in its ledger the samples that `digest` stands for, or says why it cannot."""

    client_id: UUID
    digest: str
    unknown: Mapping[UUID, list[int]] = field(default_factory=dict)
    problem: str | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.acknowledging.add(self.client_id)


@dataclass(frozen=True, slots=True)
class ClaimTasks(Message[tuple[Granted, ...]]):
    client_id: UUID
    run_id: UUID | None = None
    """Claim only tasks of this run, because those of another cannot be read."""

    def add_needs(self, needs: Needs) -> None:
        needs.claimants.add(self.client_id)
        needs.claimed_runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class RenewLease(Message[Renewed]):
    task_id: UUID
    client_id: UUID
    lease_token: str
    progress: float = 0.0

    def add_needs(self, needs: Needs) -> None:
        needs.tasks.add(self.task_id)
        needs.clients.add(self.client_id)


@dataclass(frozen=True, slots=True)
class SubmitResult(Message[Accepted]):
    task_id: UUID
    client_id: UUID
    lease_token: str
    digest: str | None
    num_samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def add_needs(self, needs: Needs) -> None:
        needs.submitted.add(self.task_id)
        needs.clients.add(self.client_id)
        if self.digest is not None:
            needs.uploads.add((self.task_id, self.digest))


@dataclass(frozen=True, slots=True)
class FailTask(Message[FailureNoted]):
    task_id: UUID
    client_id: UUID
    lease_token: str
    retryable: bool
    reason: str
    log_tail: str = ""
    handed_back: bool = False

    def add_needs(self, needs: Needs) -> None:
        needs.tasks.add(self.task_id)
        needs.clients.add(self.client_id)


@dataclass(frozen=True, slots=True)
class RecordBlob(Message[Blob]):
    """All bytes of an announced blob are stored, and were looked at."""

    blob_id: UUID
    federation_id: UUID
    digest: str
    facts: Facts
    client_id: UUID | None = None
    """Who sent it for a task."""

    def add_needs(self, needs: Needs) -> None:
        needs.blobs.add(self.blob_id)
        if self.client_id is None:
            needs.named.add((self.federation_id, self.digest))
        else:
            needs.superseded.add((self.federation_id, self.digest))
            needs.clients.add(self.client_id)


# --- time -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseRanOut(Message[None]):
    task_id: UUID
    lease_token: str

    def add_needs(self, needs: Needs) -> None:
        needs.tasks.add(self.task_id)


@dataclass(frozen=True, slots=True)
class DeadlinePassed(Message[None]):
    round_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.rounds.add(self.round_id)


# --- the engine to itself ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartProgram(Message[None]):
    cohort_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.programs.add(self.cohort_id)
        needs.steps_program = True


@dataclass(frozen=True, slots=True)
class RecallRound(Message[None]):
    """A method waits for who was in a model of its line."""

    cohort_id: UUID
    checkpoint_id: UUID | None

    def add_needs(self, needs: Needs) -> None:
        needs.programs.add(self.cohort_id)
        needs.steps_program = True
        if self.checkpoint_id is not None:
            needs.recalled.add(self.checkpoint_id)


@dataclass(frozen=True, slots=True)
class CollectRound(Message[None]):
    round_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.rounds.add(self.round_id)
        needs.steps_program = True


@dataclass(frozen=True, slots=True)
class OpenRounds(Message[None]):
    """All lock-step cohorts of the run may be ready for their next round."""

    run_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)
        needs.steps_program = True


@dataclass(frozen=True, slots=True)
class FenceErasure(Message[Erasure]):
    """The tombstone is in the log; now fence."""

    erasure_id: UUID
    job_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.fences.add(self.erasure_id)
        needs.jobs.add(self.job_id)
        needs.allocating.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class ReviewErasure(Message[None]):
    erasure_id: UUID

    def add_needs(self, needs: Needs) -> None:
        needs.reviews.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class CompleteErasure(Message[Erasure]):
    """Everything is purged and signed."""

    erasure_id: UUID
    job_id: UUID
    version: int
    """The version of the request that the certificate is about; a request that has moved on since needs another."""
    envelope: str

    def add_needs(self, needs: Needs) -> None:
        needs.erasures.add(self.erasure_id)
        needs.jobs.add(self.job_id)


@dataclass(frozen=True, slots=True)
class HoldErasure(Message[Erasure]):
    """A step outside the database failed. The certificate was refused, though everything planned is done: a person has
    to look. Or the step itself broke, like a tombstone for which there is no room: then it is tried again."""

    erasure_id: UUID
    job_id: UUID | None
    """The step's job, which is over; None when it will be tried again."""
    version: int
    reason: str

    def add_needs(self, needs: Needs) -> None:
        needs.erasures.add(self.erasure_id)
        needs.jobs.update(() if self.job_id is None else (self.job_id,))


@dataclass(frozen=True, slots=True)
class AnnounceErasure(Message[None]):
    """Tell the request's callbacks what has become of it."""

    erasure_id: UUID
    change: str
    """A status, `first_clean` or `extended`."""
    status: ErasureStatus
    reason: str | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.announced.add(self.erasure_id)


@dataclass(frozen=True, slots=True)
class SettleDelivery(Message[None]):
    """What became of one attempt to deliver."""

    delivery_id: UUID
    job_id: UUID
    error: str | None
    """None: the receiver has it."""
    is_final: bool = False
    """The receiver wants no further attempt."""

    def add_needs(self, needs: Needs) -> None:
        needs.deliveries.add(self.delivery_id)
        needs.jobs.add(self.job_id)


@dataclass(frozen=True, slots=True)
class PlaceNewcomer(Message[None]):
    """A newcomer is measured and can join a cluster."""

    run_id: UUID
    cohort_id: UUID
    job_id: UUID | None = None
    """The job that it was posted with, which is over then."""

    def add_needs(self, needs: Needs) -> None:
        needs.merging.add(self.run_id)
        needs.measured.add(self.cohort_id)
        needs.allocating.add(self.run_id)
        needs.jobs.update(() if self.job_id is None else (self.job_id,))


@dataclass(frozen=True, slots=True)
class StopRun(Message[None]):
    """A line of the run meets its stop rule: if the best of them does, all stop."""

    run_id: UUID
    cohort_id: UUID
    reason: str
    job_id: UUID | None = None
    """The job that it was posted with, and that the line waits for."""

    def add_needs(self, needs: Needs) -> None:
        needs.runs.add(self.run_id)
        needs.resuming.add(self.run_id)
        needs.programs.add(self.cohort_id)
        needs.jobs.update(() if self.job_id is None else (self.job_id,))
        needs.steps_program = True


@dataclass(frozen=True, slots=True)
class SettleRun(Message[None]):
    """A cohort of the run has ended, so that the run may have."""

    run_id: UUID
    job_id: UUID | None = None
    """The job that it was posted with, which is over then."""

    def add_needs(self, needs: Needs) -> None:
        needs.merging.add(self.run_id)
        needs.jobs.update(() if self.job_id is None else (self.job_id,))


@dataclass(frozen=True, slots=True)
class JobDone(Message[bool]):
    """A kernel's result. `blob` describes the model it made, already in the store."""

    job_id: UUID
    lease_token: str
    blob: RecordBlob | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def add_needs(self, needs: Needs) -> None:
        needs.jobs.add(self.job_id)
        needs.steps_program = True
        if self.blob is not None:
            needs.blobs.add(self.blob.blob_id)


@dataclass(frozen=True, slots=True)
class JobFailed(Message[bool]):
    job_id: UUID
    lease_token: str
    error: str
    retryable: bool
    storage_full: bool = False

    def add_needs(self, needs: Needs) -> None:
        needs.jobs.add(self.job_id)
        needs.steps_program = True  # without its selection's kernel a cohort goes on


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message with the instant of its transaction and the entropy that names what it creates."""

    message: Message[Any]
    now: datetime
    entropy: bytes
