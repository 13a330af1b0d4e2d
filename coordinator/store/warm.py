"""Rows of cohorts that stay in memory from one transaction of this process to the next.

A cohort's row has two random stamps. Whoever writes members of the cohort replaces `members_stamp`, and whoever writes
its run or any of its open rounds and tasks and buffered updates replaces `stamp`, in the same transaction. The
statement that locks the cohort returns both. Where they are those that this process left behind, nobody has written
since then, neither another process nor in a database that a failover led to, and what is in memory is what the
database would say. Clients, exclusions, blobs and keys are read each time.

What is known of a cohort belongs to the transaction that has locked it, and comes back when that has committed. If
anything goes wrong, it is not known any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import OPEN_TASK, Cohort, Entity, Member, Round, Run, Task, Update
from coordinator.engine.entities.state import RememberingTable
from coordinator.store import tables as t

MOST_ROWS: Final = 3_000_000
"""Rows of all cohorts together; cohorts that were not used for the longest time are forgotten first."""
MOST_ROUNDS: Final = 64
"""Rounds of one cohort: the open one, and earlier ones, which late answers and asynchronous tasks belong to."""


@dataclass(slots=True)
class WarmCohort:
    """What is known of one cohort."""

    stamp: UUID | None
    members_stamp: UUID | None
    run: Run | None = None
    rounds: dict[UUID, Round] = field(default_factory=dict)
    tasks: dict[UUID, Task] = field(default_factory=dict)
    """Open ones."""
    tasks_of: dict[UUID, set[UUID]] = field(default_factory=dict)
    """The ids of each client's tasks."""
    updates: dict[UUID, Update] = field(default_factory=dict)
    """Buffered ones."""
    members: RememberingTable = field(default_factory=RememberingTable)
    has_tasks: bool = False
    """Whether all open tasks are known."""
    has_updates: bool = False
    has_members: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.rounds) + len(self.tasks) + len(self.updates) + len(self.members)

    def note(self, rows: Iterable[Entity]) -> None:
        """Rows as they are in the database, or will be when the transaction has committed."""
        for row in rows:
            match row:
                case Task():
                    self._note_task(row)
                case Update():
                    if row.status == "buffered":
                        self.updates[row.id] = row
                    else:
                        self.updates.pop(row.id, None)
                case Round():
                    self.rounds.pop(row.id, None)
                    self.rounds[row.id] = row
                    if len(self.rounds) > MOST_ROUNDS:
                        del self.rounds[next(iter(self.rounds))]
                case Member():
                    if self.has_members:
                        self.members[row.key] = row

    def _note_task(self, task: Task) -> None:
        if task.status in OPEN_TASK:
            self.tasks[task.id] = task
            self.tasks_of.setdefault(task.client_id, set()).add(task.id)
        elif self.tasks.pop(task.id, None) is not None:
            own = self.tasks_of[task.client_id]
            own.discard(task.id)
            if not own:
                del self.tasks_of[task.client_id]


class Warm:
    """What is known between transactions."""

    def __init__(self) -> None:
        self._cohorts: OrderedDict[UUID, WarmCohort] = OrderedDict()
        self._num_rows = 0

    def take(self, cohort_id: UUID) -> WarmCohort | None:
        found = self._cohorts.pop(cohort_id, None)
        self._num_rows -= 0 if found is None else found.num_rows
        return found

    def give_back(self, known: Known) -> None:
        """After the commit of the transaction that took them."""
        for cohort_id, cohort in known.cohorts.items():
            self._cohorts[cohort_id] = cohort
            self._num_rows += cohort.num_rows
        while self._num_rows > MOST_ROWS:
            self.take(next(iter(self._cohorts)))

    def clear(self) -> None:
        """The database may be another one."""
        self._cohorts.clear()
        self._num_rows = 0


class Known:
    """What one transaction knows of the cohorts that it has locked."""

    def __init__(self, warm: Warm | None = None) -> None:
        """Nothing, without `warm`."""
        self._warm = warm or Warm()
        self.stamp = uuid4()
        """Replaces the stamps of what this transaction writes."""
        self.cohorts: dict[UUID, WarmCohort] = {}
        self._runs: set[UUID] = set()
        self._worked: set[UUID] = set()
        self._joined: set[UUID] = set()
        self._stamped: set[UUID] = set()

    def note_locked(self, cohort_id: UUID, stamp: UUID | None, members_stamp: UUID | None) -> None:
        """The cohort is locked, and these are its stamps."""
        if cohort_id in self.cohorts:
            return
        found = self._warm.take(cohort_id) or WarmCohort(None, None)
        if stamp is None or found.stamp != stamp:
            found = WarmCohort(stamp, found.members_stamp, members=found.members, has_members=found.has_members)
        if members_stamp is None or found.members_stamp != members_stamp:
            found.members_stamp, found.members, found.has_members = members_stamp, RememberingTable(), False
        self.cohorts[cohort_id] = found

    def note_written(self, kind: type[Entity], rows: Collection[Any], *, are_new: bool) -> None:
        """Rows that were written in this transaction."""
        if kind is Run:
            self._runs.update(run.id for run in rows)
            for cohort in self.cohorts.values():
                cohort.run = next((run for run in rows if cohort.run and run.id == cohort.run.id), cohort.run)
        elif kind is Cohort and are_new:
            for cohort in rows:
                self.cohorts[cohort.id] = WarmCohort(None, None, has_tasks=True, has_updates=True, has_members=True)
            self._worked.update(cohort.id for cohort in rows)
            self._joined.update(cohort.id for cohort in rows)
        elif kind is Cohort:
            self._stamped.update(cohort.id for cohort in rows)
        elif kind in (Round, Task, Update, Member):
            for row in rows:
                if row.cohort_id in self.cohorts:
                    self.cohorts[row.cohort_id].note((row,))
            (self._joined if kind is Member else self._worked).update(row.cohort_id for row in rows)

    async def renew_stamps(self, connection: AsyncConnection) -> None:
        """Write new stamps of all cohorts whose rows were written in this transaction, before its commit; those whose
        own row was have theirs already."""
        if self._runs:
            await connection.execute(_RENEW_OF_RUNS, {"runs": sorted(self._runs), "new": self.stamp})
        if left := self._worked - self._stamped:
            await connection.execute(_RENEW, [{"cohort": one, "new": self.stamp} for one in sorted(left)])
        if self._joined:
            await connection.execute(
                _RENEW_MEMBERS, [{"cohort": one, "new": self.stamp} for one in sorted(self._joined)]
            )
        renewed = self._worked | self._stamped
        for cohort_id, cohort in self.cohorts.items():
            if cohort_id in renewed or (cohort.run is not None and cohort.run.id in self._runs):
                cohort.stamp = self.stamp
            if cohort_id in self._joined:
                cohort.members_stamp = self.stamp

    def committed(self) -> None:
        self._warm.give_back(self)


_is_it = t.cohorts.c.id == sa.bindparam("cohort")
_new: sa.BindParameter[UUID] = sa.bindparam("new", type_=t.cohorts.c.stamp.type)
_RENEW = t.cohorts.update().where(_is_it).values(stamp=_new)
_RENEW_MEMBERS = t.cohorts.update().where(_is_it).values(members_stamp=_new)
_RENEW_OF_RUNS = (
    t.cohorts.update().where(t.cohorts.c.run_id.in_(sa.bindparam("runs", expanding=True))).values(stamp=_new)
)


S = TypeVar("S", bound=sa.Executable)


def cold(statement: S) -> S:
    """Mark a statement that writes only rows which no process remembers, and so leaves the stamps as they are."""
    return statement.execution_options(lethe_cold=True)


async def renew(connection: AsyncConnection, cohorts: sa.ColumnElement[bool]) -> None:
    """For whoever writes rows of cohorts by statements of its own: what any process knows of them is not so any more.
    Locks in the order of ids."""
    locked = sa.select(t.cohorts.c.id).where(cohorts).order_by(t.cohorts.c.id).with_for_update()
    if ids := list((await connection.execute(locked)).scalars()):
        await connection.execute(_RENEW, [{"cohort": one, "new": uuid4()} for one in ids])
