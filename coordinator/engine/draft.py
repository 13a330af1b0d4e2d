"""The notebook of one decision: the state as it evolves, the events so far, and the source of new ids."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from coordinator.engine.entities import OPEN_TASK, Cohort, Erasure, Job, JobKind, Member, State, Task
from coordinator.engine.entities.state import RememberingTable
from coordinator.engine.events import Event, JobRequested, TasksRevoked
from coordinator.engine.evolve import evolve
from coordinator.engine.posting import Posted, to_params
from services.core.ids import IdSource

T = TypeVar("T")


@dataclass(slots=True)
class Draft:
    state: State
    now: datetime
    ids: IdSource
    events: list[Event] = field(default_factory=list)
    _members: Mapping[Any, Member] | None = None
    _of_members: dict[Any, Any] = field(default_factory=dict)

    def emit(self, event: Event) -> None:
        self.state = evolve(self.state, event)
        self.events.append(event)

    def new_id(self) -> UUID:
        return self.ids.next()

    def of_members(self, name: Hashable, make: Callable[[], T]) -> T:
        """What `make` finds out about the members, once for each name while they stay the same: a run may have
        thousands of cohorts that ask."""
        if self._members is not self.state.members:
            self._members, self._of_members = self.state.members, {}
        if name not in self._of_members:
            self._of_members[name] = make()
        found: T = self._of_members[name]
        return found

    def over_messages(self, name: Hashable, make: Callable[[], T]) -> T:
        """Like `of_members`, and for later messages, too, as long as the store keeps the table: its members may be a
        million."""
        table = self.state.members
        if not isinstance(table, RememberingTable):
            return self.of_members(name, make)
        if name not in table.found_out:
            table.found_out[name] = make()
        found: T = table.found_out[name]
        return found

    def members_by_name(self, cohort_id: UUID) -> dict[str, Member]:
        """Past ones included."""
        return self.over_messages(("by name", cohort_id), lambda: {m.name: m for m in self.members_of(cohort_id)})

    def active_names(self, cohort_id: UUID) -> list[str]:
        """The names of who takes part now, in order."""
        members = self.members_by_name(cohort_id)
        return self.over_messages(("active", cohort_id), lambda: sorted(n for n, m in members.items() if m.active))

    def members_of(self, cohort_id: UUID) -> list[Member]:
        """Past ones included."""
        return self.of_members("by cohort", self._by_cohort).get(cohort_id, [])

    def _by_cohort(self) -> dict[UUID, list[Member]]:
        found: dict[UUID, list[Member]] = {}
        for member in self.state.members.values():
            found.setdefault(member.cohort_id, []).append(member)
        return found

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

    def post(self, cohort: Cohort, message: Posted) -> UUID:
        """Have a message decided later, in a transaction of its own; the id of its job."""
        return self.request(cohort, "post", to_params(message))
