"""What is replied to messages, where it is not simply the record that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic import TypeAdapter

from coordinator.engine.entities import Cohort, Run, Task
from coordinator.engine.erasure.recovery import local_training
from services.training.local_spec import LocalTraining
from services.wire.v1.work import Work

_WORK: TypeAdapter[Work] = TypeAdapter(Work)


@dataclass(frozen=True, slots=True)
class Granted:
    task: Task
    run: Run
    cohort: Cohort
    weights_bytes: int
    exclusions: str | None = None
    """Digest of the samples that the client must leave out."""

    @property
    def local(self) -> LocalTraining:
        """How the client is to train."""
        if self.task.local is not None:
            return LocalTraining.model_validate(self.task.local)
        return local_training(self.run.spec.local, self.cohort.recovery, self.task.base_round + 1)

    @property
    def work(self) -> Work | None:
        return None if self.task.work is None else _WORK.validate_python(self.task.work)


@dataclass(frozen=True, slots=True)
class Renewed:
    until: datetime


@dataclass(frozen=True, slots=True)
class Accepted:
    update_id: UUID


@dataclass(frozen=True, slots=True)
class FailureNoted:
    will_retry: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejection that left a trace: the refusal itself is counted."""

    code: str
    detail: str
