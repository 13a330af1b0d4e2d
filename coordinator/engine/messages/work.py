"""Messages of workers, and of the time that they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from coordinator.engine.entities import Blob, Client, Facts
from coordinator.engine.messages.message import Message
from coordinator.engine.needs import Needs
from coordinator.engine.replies import Accepted, FailureNoted, Granted, Renewed


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
class ClaimTasks(Message[tuple[Granted, ...]]):
    client_id: UUID
    run_id: UUID | None = None
    """Claim only tasks of this run, because those of another cannot be read."""

    @property
    def is_lasting(self) -> bool:
        """A lease that is lost is refused when its client comes with it, and the task is given out again."""
        return False

    def add_needs(self, needs: Needs) -> None:
        needs.claimants.add(self.client_id)
        needs.claimed_runs.add(self.run_id)


@dataclass(frozen=True, slots=True)
class RenewLease(Message[Renewed]):
    task_id: UUID
    client_id: UUID
    lease_token: str
    progress: float = 0.0

    @property
    def is_lasting(self) -> bool:
        """The client renews it again."""
        return False

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

    @property
    def is_lasting(self) -> bool:
        """A client whose upload is not recorded any more is told so when it submits, and uploads again."""
        return self.client_id is None

    def add_needs(self, needs: Needs) -> None:
        needs.blobs.add(self.blob_id)
        if self.client_id is None:
            needs.named.add((self.federation_id, self.digest))
        else:
            needs.superseded.add((self.federation_id, self.digest))
            needs.clients.add(self.client_id)


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
