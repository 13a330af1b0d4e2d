"""The notebook of one decision: the state as it evolves, the events so far, and the source of new ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from coordinator.engine.entities import OPEN_TASK, Cohort, Erasure, Job, JobKind, State, Task
from coordinator.engine.events import Event, JobRequested, TasksRevoked
from coordinator.engine.evolve import evolve
from coordinator.engine.posting import Posted, to_params
from services.core.ids import IdSource


@dataclass(slots=True)
class Draft:
    state: State
    now: datetime
    ids: IdSource
    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.state = evolve(self.state, event)
        self.events.append(event)

    def new_id(self) -> UUID:
        return self.ids.next()

    def open_tasks(self, cohort_id: UUID) -> list[Task]:
        return [t for t in self.state.tasks.values() if t.cohort_id == cohort_id and t.status in OPEN_TASK]

    def revoke(self, tasks: Iterable[Task]) -> None:
        if task_ids := tuple(task.id for task in tasks):
            self.emit(TasksRevoked(task_ids))

    def request(
        self,
        about: Cohort | Erasure,
        kind: JobKind,
        params: dict[str, Any],
        kernel: str | None = None,
        inputs: list[str] | None = None,
    ) -> UUID:
        """Put a job of a cohort, or of a request to forget, into the outbox."""
        cohort, owner = (about, self.state.runs[about.run_id]) if isinstance(about, Cohort) else (None, about)
        job = Job(
            id=self.new_id(),
            run_id=cohort.run_id if cohort is not None else None,
            cohort_id=cohort.id if cohort is not None else None,
            federation_id=owner.federation_id,
            epoch=cohort.epoch if cohort is not None else 0,
            kind=kind,
            kernel=kernel,
            params=params,
            inputs=inputs or [],
            status="ready",
            created_at=self.now,
        )
        self.emit(JobRequested(job))
        return job.id

    def post(self, cohort: Cohort, message: Posted) -> None:
        """Have a message decided later, in a transaction of its own."""
        self.request(cohort, "post", to_params(message))
