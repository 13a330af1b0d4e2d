"""Events of requests to forget, and of what they do to cohorts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from coordinator.engine.entities import (
    AffectedCohort,
    Certificate,
    Delivery,
    Erasure,
    Exclusion,
    Extension,
    Ruling,
    Subject,
)
from coordinator.engine.erasure.stages import AuditReport, Recover, Unlearn
from services.program.contract import Source
from services.wire.v1.erasure import ErasureStatus


@dataclass(frozen=True, slots=True)
class CohortFenced:
    """The cohort goes on in a new epoch, with a model without the leavers or with none; its older work is void."""

    cohort_id: UUID
    epoch: int
    head_id: UUID | None
    head_digest: str | None
    round: int
    sources: tuple[Source, ...] = ()
    """Models of surviving cohorts that it is re-initialised from."""
    extra_rounds: int = 0
    unlearning: Unlearn | None = None
    """The method that runs before it recovers."""
    recovery: Recover | None = None
    """The training that makes up for the fence, where no method runs before it."""


@dataclass(frozen=True, slots=True)
class RoundRecalled:
    """A method asks who contributed to an old model of the fenced cohort."""

    cohort_id: UUID
    checkpoint_id: UUID | None
    """None: the cohort has no such round."""


@dataclass(frozen=True, slots=True)
class CohortUnlearned:
    """The method is done: the cohort recovers, by its own training from the model that the method made."""

    cohort_id: UUID
    reason: str
    recovery: Recover
    extra_rounds: int


@dataclass(frozen=True, slots=True)
class RecoveryBegun:
    """A cohort recovers without an erasure: so many of its next rounds are of a recovery method."""

    cohort_id: UUID
    recovery: Recover
    extra_rounds: int


@dataclass(frozen=True, slots=True)
class ClassFound:
    """It is known which class the cohort's recovery is about, or that there is none."""

    cohort_id: UUID
    recovery: Recover
    reason: str


@dataclass(frozen=True, slots=True)
class UnlearningStopped:
    """The method gave up; the request says what is to be done."""

    cohort_id: UUID
    reason: str


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
class ErasureDecided:
    """Somebody approved or denied a request that awaited it; the move follows."""

    erasure_id: UUID
    ruling: Ruling


@dataclass(frozen=True, slots=True)
class ErasureExtended:
    """The request has another legal deadline."""

    erasure_id: UUID
    extension: Extension


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
    """The method that it is carried out with, which is settled at the fence."""
    is_held: bool = False
    """requires_action: the request waits until somebody retries it."""
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
class ExclusionsAcknowledged:
    """The client's worker has in its ledger all that it must leave out."""

    client_id: UUID
    at: datetime
    unknown: Mapping[UUID, list[int]]
    """Some of the samples that the data set does not have, by request."""


@dataclass(frozen=True, slots=True)
class ExclusionsRefused:
    """The client's worker cannot leave the samples out."""

    client_id: UUID
    problem: str


@dataclass(frozen=True, slots=True)
class AffectedCohortFenced:
    """It is settled what the request does to this cohort; a later fence of the cohort settles it anew."""

    affected: AffectedCohort


@dataclass(frozen=True, slots=True)
class AffectedCohortClean:
    """The cohort serves a model without the leavers, or nothing for good."""

    erasure_id: UUID
    cohort_id: UUID
    at: datetime


@dataclass(frozen=True, slots=True)
class AffectedCohortAudited:
    erasure_id: UUID
    cohort_id: UUID
    audit: AuditReport


@dataclass(frozen=True, slots=True)
class AffectedCohortDone:
    """The cohort has recovered, or nobody goes on with it."""

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
    """An attempt was made. Without a next one the delivery is settled: delivered, or with an error failed for good."""

    delivery_id: UUID
    at: datetime
    error: str | None
    next_attempt_at: datetime | None


UnlearningEvent = (
    CohortFenced
    | RoundRecalled
    | CohortUnlearned
    | RecoveryBegun
    | ClassFound
    | UnlearningStopped
    | CheckpointsSuperseded
)
ErasureEvent = (
    ErasureFiled
    | ErasureDecided
    | ErasureExtended
    | ErasureMoved
    | ClientErased
    | ClientReleased
    | SamplesExcluded
    | ExclusionsAcknowledged
    | ExclusionsRefused
    | AffectedCohortFenced
    | AffectedCohortClean
    | AffectedCohortAudited
    | AffectedCohortDone
    | CertificateIssued
    | DeliveryRequested
    | DeliveryAttempted
)
