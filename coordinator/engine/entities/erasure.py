"""Records of requests to forget: whom and what they name, what they do to each cohort, how they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

from coordinator.engine.erasure.stages import AuditReport, CleanModel, RecoveryWanted
from services.program.contract import Source
from services.wire.v1.erasure import ErasureStatus, Fallback, Ground

SETTLED: frozenset[ErasureStatus] = frozenset({"completed", "denied", "cancelled", "failed"})
Action = Literal["rolled-back", "re-initialised", "retired", "unlearned"]
Eyes = Literal["two persons", "two credentials"]
"""What tells the filer of a request from the person who decided it."""


@dataclass(frozen=True, slots=True)
class Party:
    """Whoever files, decides or extends a request, as it is named at that moment."""

    credential_id: UUID
    role: str
    label: str | None = None
    """The credential's label; None for a client's own."""
    person: str | None = None
    """The name of who signed in with OpenID Connect."""
    subject: str | None = None
    """Issuer and subject of who signed in with OpenID Connect: the same person has the same, under whatever name."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """How a request that awaited approval was decided."""

    outcome: Literal["approved", "denied"]
    by: Party
    at: datetime
    reason: str | None = None
    eyes: Eyes | None = None
    """None: the filer may have decided it, too."""


@dataclass(frozen=True, slots=True)
class Extension:
    """The extension of a request's legal deadline; there is at most one."""

    until: datetime
    reason: str
    at: datetime
    by: Party
    deadline_before: datetime


@dataclass(frozen=True, slots=True)
class Erasure:
    """A request to forget.

    received ─► (awaiting_approval ─►) fenced ─► executing ─► verifying ─► completed
                         └─► denied | cancelled                └─► failed;  requires_action from any open state
    """

    table: ClassVar = "erasures"
    id: UUID
    federation_id: UUID
    status: ErasureStatus
    scope: Literal["client", "samples"]
    samples: Mapping[str, list[int]]
    """scope samples: the indices to forget, by client name."""
    method: str
    """The method that was asked for; `chosen` is the one that it is carried out with."""
    guarantee: Literal["exact", "approximate"]
    regulation: str
    requested_by: str
    salt: str
    """Keys the commitments to the subjects in the certificate; empty once the request is settled: from then on only the
    opening has it."""
    created_at: datetime
    legal_deadline: datetime
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the method."""
    recovery_rounds: int | None = None
    recovery: RecoveryWanted | None = None
    """None: those who remain train on as they always do."""
    fallback: Fallback | None = None
    """What follows when an approximate method gives up or its audit fails; None: the operator is asked."""
    audit: Mapping[str, Any] | None = None
    """What an approximate method has to show (services/audit/spec.py); None: nothing is measured."""
    version: int = 1
    reason: str | None = None
    is_held: bool = False
    """requires_action: it does not go on by itself; somebody has to retry it."""
    duplicate_of: UUID | None = None
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    """Where changes are posted to, as {url, secret}."""
    chosen: str | None = None
    """The method that it is carried out with; settled at the fence, by the state of that moment."""
    fenced_at: datetime | None = None
    first_clean_at: datetime | None = None
    completed_at: datetime | None = None
    reward: float | None = None
    """What each round of its work pays, where the federation divides its clients among jobs; None: as by default."""
    ground: Ground | None = None
    external_ref: str | None = None
    """Its name elsewhere, like the number of a ticket."""
    filed_by: Party | None = None
    """None: nobody recorded it, as in older releases; or the log of tombstones had it filed again."""
    needs_approval: bool = False
    four_eyes: bool = False
    """Whether somebody else than who filed it has to decide it; settled when it is filed."""
    ruling: Ruling | None = None
    extension: Extension | None = None

    @property
    def key(self) -> UUID:
        return self.id

    @property
    def awaits_fence(self) -> bool:
        """Whether the fence is still to come, also because its tombstone could not be written so far."""
        return self.fenced_at is None and self.status in ("received", "requires_action")


@dataclass(frozen=True, slots=True)
class Subject:
    table: ClassVar = "subjects"
    erasure_id: UUID
    client_id: UUID
    name: str
    active: bool = True
    """Whether this request is the one that forgets the whole client; there may be many for its samples."""

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.erasure_id, self.client_id


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Samples that a client leaves out for good, from the fence of the request that names them on."""

    table: ClassVar = "exclusions"
    erasure_id: UUID
    client_id: UUID
    client_name: str
    samples: list[int]
    ordered_at: datetime
    acked_at: datetime | None = None
    """When its worker first said that they are in its ledger, on disk."""
    unknown: list[int] = field(default_factory=list)
    """Some of the samples, if its data set does not have them."""
    problem: str | None = None
    """Why its worker cannot leave them out."""

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.erasure_id, self.client_id


@dataclass(frozen=True, slots=True)
class AffectedCohort:
    """What an erasure does to one cohort."""

    table: ClassVar = "affected_cohorts"
    erasure_id: UUID
    cohort_id: UUID
    run_id: UUID
    cohort_name: str
    action: Action
    epoch_before: int
    epoch_after: int
    round_at_fence: int
    target_round: int
    head_before: str | None
    rollback_digest: str | None
    sources: tuple[Source, ...] = ()
    """re-initialised: the models that it restarts from."""
    fallback: CleanModel | None = None
    """unlearned: what it is rolled back to when the method fails; None: it is trained from the beginning."""
    audit: AuditReport | None = None
    """unlearned: what the audit found; None: it was not audited so far."""
    clean_at: datetime | None = None
    done_at: datetime | None = None
    cut_at: datetime | None = None
    """When the request cut it last, which is later than its fence where a method failed; None: an older release did."""

    @property
    def key(self) -> tuple[UUID, UUID]:
        return self.erasure_id, self.cohort_id


@dataclass(frozen=True, slots=True)
class Certificate:
    table: ClassVar = "certificates"
    erasure_id: UUID
    envelope: str
    """The DSSE envelope, byte for byte as it was signed."""
    issued_at: datetime

    @property
    def key(self) -> UUID:
        return self.erasure_id


@dataclass(frozen=True, slots=True)
class Delivery:
    """A change of a request, on its way to one of its callbacks."""

    table: ClassVar = "deliveries"
    id: UUID
    erasure_id: UUID
    seq: int
    """The number of the change among those of the request."""
    callback: int
    """The place of the callback among the request's."""
    url: str
    type: str
    payload: Mapping[str, Any]
    created_at: datetime
    status: Literal["pending", "delivered", "failed"] = "pending"
    attempts: int = 0
    next_attempt_at: datetime | None = None
    delivered_at: datetime | None = None
    error: str | None = None

    @property
    def key(self) -> UUID:
        return self.id
