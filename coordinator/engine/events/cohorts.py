"""Events of cohorts: their members, the steps of their programs, their models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from coordinator.engine.entities import Blob, Checkpoint, Cohort, CohortPhase, Contribution, Facts, Job, Member, Parent
from services.program.contract import AskClients, Source


@dataclass(frozen=True, slots=True)
class CohortFormed:
    cohort: Cohort
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class MemberJoined:
    member: Member


@dataclass(frozen=True, slots=True)
class MemberLeft:
    cohort_id: UUID
    client_id: UUID


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
    """The running vectors that replace the cohort's; None: it keeps those that it has."""


@dataclass(frozen=True, slots=True)
class UpdatesLeftOut:
    """The round's new model does not contain these updates: they exceeded the run's bounds."""

    cohort_id: UUID
    round: int
    update_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class CohortWaits:
    """The cohort is ready for its next round; lock-step opens it together with the others'."""

    cohort_id: UUID
    state: Mapping[str, Any]
    ask: AskClients


@dataclass(frozen=True, slots=True)
class CohortMoved:
    """The cohort takes its parent's place in the tree."""

    cohort_id: UUID
    parent_id: UUID | None


@dataclass(frozen=True, slots=True)
class CohortRestarted:
    """The cohort's program starts anew, from the given models of other cohorts if there are any."""

    cohort_id: UUID
    sources: tuple[Source, ...]
    round: int


@dataclass(frozen=True, slots=True)
class CohortRevived:
    """The cohort's program starts anew from its head, after the run had failed."""

    cohort_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class CohortEnded:
    cohort_id: UUID
    phase: Literal["finished", "failed"]
    reason: str


@dataclass(frozen=True, slots=True)
class CohortRetired:
    """The cohort's line ends here; nothing of it is served."""

    cohort_id: UUID
    reason: str


CohortEvent = (
    CohortFormed
    | MemberJoined
    | MemberLeft
    | ProgramAdvanced
    | CheckpointPublished
    | UpdatesLeftOut
    | CohortWaits
    | CohortMoved
    | CohortRestarted
    | CohortRevived
    | CohortEnded
    | CohortRetired
)
JobEvent = JobRequested | JobSettled | JobReturned | BlobRecorded
