"""Messages that move the program of a cohort: it starts, its round is over, its kernel has an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from coordinator.engine.messages.message import Message
from coordinator.engine.messages.work import RecordBlob
from coordinator.engine.needs import Needs


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
