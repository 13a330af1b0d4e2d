"""Records of incentives: how a federation divides its clients among jobs, period by period, and who earned what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal
from uuid import UUID

from services.incentive.division import Candidate, Division, Job
from services.incentive.spec import Incentives, Strategy
from services.wire.v1.people import FourEyes


@dataclass(frozen=True, slots=True)
class Federation:
    table: ClassVar = "federations"
    id: UUID
    name: str
    created_at: datetime
    allocation: Strategy | None = None
    """How its clients are divided among jobs that go on at the same time; None: everybody serves all of them."""
    incentives: Incentives | None = None
    four_eyes: FourEyes = "off"
    """Which requests to forget somebody else than the filer has to approve."""

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class Period:
    """A division of a federation's clients among its jobs, with everything that it was decided from."""

    table: ClassVar = "periods"
    federation_id: UUID
    number: int
    strategy: Strategy
    begun_at: datetime
    incentives: Incentives
    jobs: tuple[Job, ...]
    candidates: tuple[Candidate, ...]
    division: Division

    @property
    def key(self) -> tuple[UUID, int]:
        return self.federation_id, self.number


@dataclass(frozen=True, slots=True)
class Allotment:
    """The job that a cohort's work belongs to in the present period, and what that pays."""

    period: int
    job_id: UUID
    is_erasure: bool
    """Whether the job is a request to forget, and not the cohort's run."""
    pool: float
    num_clients: int
    """The active members that serve it."""
    incentives: Incentives = field(default_factory=Incentives)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What an answer cost its client, or what the round that used it paid."""

    table: ClassVar = "ledger"
    id: UUID
    federation_id: UUID
    client_id: UUID
    client_name: str
    run_id: UUID
    job_id: UUID
    update_id: UUID
    kind: Literal["cost", "reward"]
    period: int
    round: int
    amounts: Mapping[str, float]
    """cost: computation, communication, storage; reward: share, fixed."""
    at: datetime

    @property
    def key(self) -> UUID:
        return self.id


@dataclass(frozen=True, slots=True)
class Measured:
    """What a client's work was like so far; what it declares goes before it."""

    samples: int
    seconds: float = 0.0
    num_bytes: float = 0.0
    """The average size of its updates."""
