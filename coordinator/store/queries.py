"""What operators read: runs, cohorts, rounds, tasks, events. Reads only.

`within` is the caller's federation; what lies outside it does not exist. None sees every federation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import ENDED
from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from services.core.errors import Rejected
from services.core.model_figures import ACCURACIES, accuracy_of
from services.wire.v1.resources import Cohort, Event, Member, Page, Round, Run, RunStatus, Task
from services.wire.v1.runs import RunSpec


async def run(connection: AsyncConnection, run_id: UUID, within: UUID | None) -> Run:
    statement = _visible(_runs(), within).where(t.runs.c.id == run_id)
    row = (await connection.execute(statement)).first()
    if row is None:
        raise Rejected("not-found", f"there is no run {run_id}")
    return _run(row, await _accuracies(connection, [run_id]))


async def runs(
    connection: AsyncConnection,
    within: UUID | None,
    status: RunStatus | None,
    position: Position,
    leave_out: Callable[[UUID, Exception], None],
) -> Page[Run]:
    """`leave_out` is told of runs whose rows cannot be read; the others are shown."""
    statement = _visible(_runs(), within)
    if status is not None:
        statement = statement.where(t.runs.c.status == status)
    found = await page(connection, statement, t.runs.c.id, position, lambda row: row, newest_first=True)
    accuracies = await _accuracies(connection, [row.id for row in found.items])
    readable = []
    for row in found.items:
        try:
            readable.append(_run(row, accuracies))
        except ValueError as error:
            leave_out(row.id, error)
    return Page(items=readable, next_cursor=found.next_cursor)


async def require_run(connection: AsyncConnection, run_id: UUID, within: UUID | None) -> UUID:
    """Its federation. Cheaper than `run` when only its existence matters."""
    statement = _visible(sa.select(t.runs.c.federation_id), within).where(t.runs.c.id == run_id)
    federation_id: UUID | None = (await connection.execute(statement)).scalar_one_or_none()
    if federation_id is None:
        raise Rejected("not-found", f"there is no run {run_id}")
    return federation_id


async def has_ended(connection: AsyncConnection, run_id: UUID) -> bool:
    return (await connection.execute(sa.select(t.runs.c.status).where(t.runs.c.id == run_id))).scalar() in ENDED


async def cohort(connection: AsyncConnection, cohort_id: UUID, within: UUID | None) -> Cohort:
    statement = sa.select(t.cohorts).join(t.runs, t.runs.c.id == t.cohorts.c.run_id).where(t.cohorts.c.id == cohort_id)
    row = (await connection.execute(_visible(statement, within))).first()
    if row is None:
        raise Rejected("not-found", f"there is no cohort {cohort_id}")
    return _cohort(row)


async def cohorts(connection: AsyncConnection, run_id: UUID, position: Position) -> Page[Cohort]:
    statement = sa.select(t.cohorts).where(t.cohorts.c.run_id == run_id)
    return await page(connection, statement, t.cohorts.c.id, position, _cohort)


async def members(connection: AsyncConnection, cohort_id: UUID, position: Position) -> Page[Member]:
    """The members who take part now, by name."""
    statement = sa.select(t.members).where(t.members.c.cohort_id == cohort_id, t.members.c.active)
    return await page(connection, statement, t.members.c.name, position, _member)


async def rounds(connection: AsyncConnection, run_id: UUID, position: Position) -> Page[Round]:
    statement = sa.select(t.rounds, _left_out().label("num_left_out")).where(t.rounds.c.run_id == run_id)
    return await page(connection, statement, t.rounds.c.id, position, _round)


async def tasks(connection: AsyncConnection, run_id: UUID, status: str | None, position: Position) -> Page[Task]:
    statement = sa.select(t.tasks).where(t.tasks.c.run_id == run_id)
    if status is not None:
        statement = statement.where(t.tasks.c.status == status)
    return await page(connection, statement, t.tasks.c.id, position, task_of)


async def events(connection: AsyncConnection, run_id: UUID, position: Position) -> Page[Event]:
    statement = sa.select(t.journal).where(t.journal.c.run_id == run_id)
    return await page(connection, statement, t.journal.c.seq, position, _event)


def _left_out() -> sa.ScalarSelect[int]:
    """How many updates a round took that the model it made does not contain."""
    r, u, c = t.rounds.c, t.updates.c, t.checkpoints.c
    made = sa.exists().where(c.cohort_id == r.cohort_id, c.epoch == r.epoch, c.round == r.number, c.kind == "aggregate")
    is_in_a_model = sa.exists().where(t.contributions.c.update_id == u.id)
    taken = sa.select(sa.func.count()).where(u.consumed_by == r.id, u.kind == "train", ~is_in_a_model, made)
    return taken.correlate(t.rounds).scalar_subquery()


# --- rows to resources ------------------------------------------------------------------------------------------------


def _visible(statement: sa.Select[Any], within: UUID | None) -> sa.Select[Any]:
    return statement if within is None else statement.where(t.runs.c.federation_id == within)


def _runs() -> sa.Select[Any]:
    newest = sa.select(sa.func.max(t.cohorts.c.round)).where(t.cohorts.c.run_id == t.runs.c.id).scalar_subquery()
    broken = sa.select(sa.func.max(t.jobs.c.error)).where(
        t.jobs.c.run_id == t.runs.c.id, t.IS_OPEN_JOB, t.jobs.c.num_failures > 0
    )
    return sa.select(t.runs, newest.label("newest_round"), broken.scalar_subquery().label("trouble"))


async def _accuracies(connection: AsyncConnection, run_ids: Sequence[UUID]) -> dict[UUID, float]:
    """The newest judged accuracy of each run: on the coordinator's data if it has any, else at the clients. The
    figures are read here and not in SQL, which refuses a whole statement for one number that is not finite."""
    c = t.checkpoints.c
    text = sa.cast(c.metrics, sa.Text)
    is_judged = sa.or_(*(text.contains(f'"{name}"') for name in ACCURACIES))
    rank = sa.func.row_number().over(partition_by=c.run_id, order_by=c.id.desc()).label("rank")
    judged = sa.select(c.run_id, c.metrics, rank).where(c.run_id.in_(run_ids), is_judged).subquery()
    rows = await connection.execute(sa.select(judged.c.run_id, judged.c.metrics).where(judged.c.rank == 1))
    found = {row.run_id: accuracy_of(row.metrics) for row in rows}
    return {run_id: accuracy for run_id, accuracy in found.items() if accuracy is not None}


def _run(row: sa.Row[Any], accuracies: dict[UUID, float]) -> Run:
    spec = RunSpec.model_validate_json(orjson.dumps(row.spec))
    return Run(
        id=row.id,
        federation_id=row.federation_id,
        name=row.name,
        status=row.status,
        reason=row.reason or row.trouble,
        version=row.version,
        created_at=row.created_at,
        ended_at=row.ended_at,
        round=row.newest_round or 0,
        rounds_planned=spec.stop.rounds,
        accuracy=accuracies.get(row.id),
        spec=spec,
    )


def _cohort(row: sa.Row[Any]) -> Cohort:
    return Cohort(
        id=row.id,
        run_id=row.run_id,
        name=row.name,
        epoch=row.epoch,
        phase=row.phase,
        round=row.round,
        head=row.head_id,
        num_members=row.num_members,
        kind=row.kind,
        parent_id=row.parent_id,
        group=row.group,
    )


def _member(row: sa.Row[Any]) -> Member:
    return Member(client_id=row.client_id, name=row.name)


def _round(row: sa.Row[Any]) -> Round:
    shown = {name: value for name, value in row._mapping.items() if name in Round.model_fields}
    return Round(**shown, deadline_at=row.due_at)


def task_of(row: sa.Row[Any]) -> Task:
    shown = {name: value for name, value in row._mapping.items() if name in Task.model_fields}
    if row.status == "done":  # agents report progress while they train, and nothing when they are through
        shown["progress"] = 1.0
    return Task(**shown, lease_expires_at=row.due_at if row.status == "leased" else None)


def _event(row: sa.Row[Any]) -> Event:
    return Event(**row._mapping)
