"""Messages about requests to forget: from whoever decides them, from the steps outside the database, from workers that
leave samples out, and to callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from coordinator.engine.entities import Erasure, Party
from coordinator.engine.erasure.stages import RecoveryWanted
from coordinator.engine.messages.message import Message
from coordinator.engine.needs import Needs
from services.core.digests import mentioned_in
from services.wire.v1.erasure import ErasureStatus, Fallback, Ground


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


@dataclass(frozen=True, slots=True)
class FenceErasure(Message[Erasure]):
    """The tombstone is in the log; now fence."""

    erasure_id: UUID
    job_id: UUID
    listed: frozenset[str] | None = field(default=None, repr=False)
    """Digests of models that were noted outside the database as out of use. If the fence would supersede another one,
    nothing happens: it has to be noted first. None: the fence falls whatever was noted."""

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
class AcknowledgeExclusions(Message[None]):
    """The client's worker has in its ledger the samples that `digest` stands for, or says why it cannot."""

    client_id: UUID
    digest: str
    unknown: Mapping[UUID, list[int]] = field(default_factory=dict)
    problem: str | None = None

    def add_needs(self, needs: Needs) -> None:
        needs.acknowledging.add(self.client_id)


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
