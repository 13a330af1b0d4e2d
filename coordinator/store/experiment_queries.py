"""What happened in the one run of an experiment: what its results are made of, and what a killed one goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED, AffectedCohort, Client, Cohort, Erasure, Run, Subject, Task
from coordinator.engine.replies import Granted
from coordinator.store import tables as t
from coordinator.store.rows import fetch, fetch_by
from services.core.model_figures import accuracy_of, loss_of

TOP_LINES = ("line", "root", "leaf")
LINES = (*TOP_LINES, "inner")


@dataclass(frozen=True, slots=True)
class Published:
    at: datetime
    cohort: str
    is_top: bool
    """Whether it is a model of a top-level line, not of a part of one or a merged one."""
    epoch: int
    round: int
    kind: str
    digest: str
    metrics: dict[str, float]
    participants: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Forgotten:
    erasure: Erasure
    subjects: list[str]
    lines: list[AffectedCohort]
    updates: int
    """Accepted in the lines' cohorts from the fence to completion."""
    seconds: float


async def run(connection: AsyncConnection) -> Run | None:
    found = await fetch(connection, Run)
    return found[0] if found else None


async def cohorts(connection: AsyncConnection) -> list[Cohort]:
    return sorted(await fetch(connection, Cohort), key=lambda c: c.name)


async def newest_instant(connection: AsyncConnection) -> datetime | None:
    """When something last happened."""
    columns = (t.journal.c.at, t.erasure_log.c.at, t.tasks.c.leased_at, t.updates.c.received_at)
    found = [(await connection.execute(sa.select(sa.func.max(column)))).scalar() for column in columns]
    return max((instant for instant in found if instant is not None), default=None)


async def answered(connection: AsyncConnection, principal: str) -> set[str]:
    """The keys of the requests of a principal that were carried out."""
    statement = sa.select(t.inbox.c.key).where(t.inbox.c.principal == principal)
    return set((await connection.execute(statement)).scalars())


async def claimed_together(connection: AsyncConnection) -> list[Granted]:
    """Every task that was handed out at an instant at which one was that is still being worked on."""
    instants = sa.select(t.tasks.c.leased_at).where(t.tasks.c.status == "leased")
    found = await fetch(connection, Task, t.tasks.c.leased_at.in_(instants))
    runs = {run.id: run for run in await fetch(connection, Run)}
    cohorts = {c.id: c for c in await fetch_by(connection, Cohort, t.cohorts.c.id, {x.cohort_id for x in found})}
    clients = {c.id: c for c in await fetch_by(connection, Client, t.clients.c.id, {x.client_id for x in found})}
    return [Granted(x, runs[x.run_id], cohorts[x.cohort_id], 0, clients[x.client_id].exclusions) for x in found]


_READY = (
    sa.select(t.clients.c.name)
    .distinct()
    .join(t.tasks, t.tasks.c.client_id == t.clients.c.id)
    .join(t.runs, t.runs.c.id == t.tasks.c.run_id)
    .where(
        t.IS_CLAIMABLE_OR_LEASED,
        t.tasks.c.status == "ready",
        t.tasks.c.due_at.is_(None) | (t.tasks.c.due_at <= sa.bindparam("now", type_=t.tasks.c.due_at.type)),
        t.runs.c.status == "running",
    )
    .order_by(t.clients.c.name)
)


async def clients_with_work(connection: AsyncConnection, now: datetime) -> list[str]:
    return list((await connection.execute(_READY, {"now": now})).scalars())


_DUE = [
    sa.select(sa.func.min(t.tasks.c.due_at))
    .join(t.runs, t.runs.c.id == t.tasks.c.run_id)
    .where(t.IS_CLAIMABLE_OR_LEASED, t.tasks.c.status == "ready", t.runs.c.status == "running"),
    sa.select(sa.func.min(t.rounds.c.due_at))
    .join(t.runs, t.runs.c.id == t.rounds.c.run_id)
    .where(t.rounds.c.status == "open", ~t.rounds.c.waiting_for_quorum, t.runs.c.status == "running"),
    sa.select(sa.func.min(t.jobs.c.due_at)).where(t.IS_OPEN_JOB, t.jobs.c.status == "ready"),
]


async def next_due(connection: AsyncConnection, now: datetime) -> datetime | None:
    """When the clockwork has something to do next: a deadline, or a pause before another attempt, that ends."""
    found = [(await connection.execute(statement)).scalar() for statement in _DUE]
    return min((instant for instant in found if instant is not None and instant > now), default=None)


async def free_jobs(connection: AsyncConnection) -> None:
    """What a dead process had in hand is to be done anew. Only where no other process can have it."""
    held = t.jobs.c.status == "leased"
    await connection.execute(t.jobs.update().where(held).values(status="ready", lease_token=None, due_at=None))


async def open_erasures(connection: AsyncConnection) -> list[Erasure]:
    return await fetch(connection, Erasure, t.erasures.c.status.not_in(SETTLED))


async def slowest_round(connection: AsyncConnection) -> int | None:
    """The round that every line has reached; None before there are any."""
    c = t.cohorts.c
    statement = sa.select(sa.func.min(c.round)).where(c.kind.in_(LINES), c.phase != "retired", c.head_id.is_not(None))
    reached: int | None = (await connection.execute(statement)).scalar()
    return reached


async def served_figures(connection: AsyncConnection) -> tuple[list[float], list[float]]:
    """Accuracies and losses of the heads of top-level lines, where they were judged."""
    c = t.cohorts.c
    statement = (
        sa.select(t.checkpoints.c.metrics)
        .join(t.cohorts, c.head_id == t.checkpoints.c.id)
        .where(c.kind.in_(TOP_LINES), c.parent_id.is_(None), c.phase != "retired")
    )
    found = (await connection.execute(statement)).scalars().all()
    accuracies, losses = map(accuracy_of, found), map(loss_of, found)
    return [one for one in accuracies if one is not None], [one for one in losses if one is not None]


async def published(connection: AsyncConnection) -> list[Published]:
    """Every model, in the order of time."""
    x, c = t.checkpoints.c, t.cohorts.c
    work = (
        sa.select(t.contributions.c.checkpoint_id, sa.func.count().label("participants"))
        .add_columns(sa.func.sum(t.updates.c.seconds).label("seconds"))
        .join(t.updates, t.updates.c.id == t.contributions.c.update_id)
        .group_by(t.contributions.c.checkpoint_id)
        .subquery()
    )
    statement = (
        sa.select(x.created_at, c.name, c.kind.label("cohort_kind"), c.parent_id, x.epoch, x.round, x.kind, x.digest)
        .add_columns(x.metrics, work.c.participants, work.c.seconds)
        .join(t.cohorts, c.id == x.cohort_id)
        .outerjoin(work, work.c.checkpoint_id == x.id)
        .order_by(x.created_at, c.name, x.epoch, x.round)
    )
    return [
        Published(
            at=row.created_at,
            cohort=row.name,
            is_top=row.cohort_kind in TOP_LINES and row.parent_id is None,
            epoch=row.epoch,
            round=row.round,
            kind=row.kind,
            digest=row.digest,
            metrics=row.metrics,
            participants=row.participants or 0,
            seconds=row.seconds or 0.0,
        )
        for row in await connection.execute(statement)
    ]


async def forgotten(connection: AsyncConnection) -> list[Forgotten]:
    """Every request, in the order of filing."""
    found = []
    for erasure in sorted(await fetch(connection, Erasure), key=lambda e: (e.created_at, e.id)):
        subjects = await fetch(connection, Subject, t.subjects.c.erasure_id == erasure.id)
        lines = await fetch(connection, AffectedCohort, t.lines.c.erasure_id == erasure.id)
        lines.sort(key=lambda line: line.cohort_name)
        updates, seconds = await _redone(connection, erasure, [line.cohort_id for line in lines])
        found.append(Forgotten(erasure, sorted(s.name for s in subjects), lines, updates, seconds))
    return found


async def _redone(connection: AsyncConnection, erasure: Erasure, cohort_ids: Sequence[UUID]) -> tuple[int, float]:
    u = t.updates.c
    if erasure.fenced_at is None:
        return 0, 0.0
    asked_since = [u.cohort_id.in_(cohort_ids), u.digest.is_not(None), t.tasks.c.leased_at >= erasure.fenced_at]
    if erasure.completed_at is not None:
        asked_since.append(u.received_at <= erasure.completed_at)
    return await _work_of(connection, *asked_since)


async def all_work(connection: AsyncConnection) -> tuple[int, float]:
    """Accepted updates and the seconds that clients spent on them."""
    return await _work_of(connection, t.updates.c.digest.is_not(None))


async def _work_of(connection: AsyncConnection, *where: sa.ColumnElement[Any]) -> tuple[int, float]:
    u = t.updates.c
    statement = sa.select(sa.func.count(), sa.func.sum(u.seconds)).join(t.tasks, t.tasks.c.id == u.task_id)
    row = (await connection.execute(statement.where(*where))).one()
    return row[0], float(row[1] or 0.0)
