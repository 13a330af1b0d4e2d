"""Events of runs, sessions, rounds, tasks and updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from coordinator.engine.entities import Hold, Round, Run, RunStatus, Task, Update


@dataclass(frozen=True, slots=True)
class RunCreated:
    run: Run


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
class RunReopened:
    """An ended run goes on because an erasure has something to retrain in it."""

    run_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class RunResized:
    run_id: UUID
    num_clients: int


RunEvent = RunCreated | RunPaused | RunResumed | RunEnded | SessionOpened | ClientRemoved | RunReopened | RunResized
RoundEvent = RoundOpened | QuorumAwaited | RoundFilled | RoundStarved | OthersAsked | RoundClosed | RoundAbandoned
TaskEvent = (
    TaskLeased
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
)
