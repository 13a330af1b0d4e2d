"""What the doors of the API ask the database: how much is stored, whose runs a full store stops, figures for
`/metrics`. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED
from coordinator.store import tables as t

_NOTHING = t.jobs.update().where(sa.false()).values(attempt=t.jobs.c.attempt)


async def takes_writes(connection: AsyncConnection) -> None:
    """Raises when the database does not, or does not answer. Changes nothing."""
    await connection.execute(_NOTHING, {})


_HOLDS_TASK = sa.select(
    sa.exists().where(t.tasks.c.client_id == sa.bindparam("client"), t.tasks.c.status == "leased").label("holds")
)


async def holds_task(connection: AsyncConnection, client_id: UUID) -> bool:
    return bool((await connection.execute(_HOLDS_TASK, {"client": client_id})).scalar())


_STORED = sa.select(
    t.blobs.c.federation_id, t.blobs.c.client_id, sa.func.sum(t.blobs.c.num_bytes).label("num_bytes")
).group_by(t.blobs.c.federation_id, t.blobs.c.client_id)


async def stored_bytes(connection: AsyncConnection) -> list[tuple[UUID, UUID | None, int]]:
    """(federation, client, bytes) of everything that is recorded; what is not a client's comes with None."""
    rows = await connection.execute(_STORED)
    return [(row.federation_id, row.client_id, int(row.num_bytes)) for row in rows]


async def erased_by(connection: AsyncConnection, client_id: UUID) -> UUID | None:
    """The request that erased the client."""
    e, s = t.erasures.c, t.subjects.c
    fenced = (
        sa.select(e.id)
        .join(t.subjects, s.erasure_id == e.id)
        .where(s.client_id == client_id, e.scope == "client", e.fenced_at.is_not(None))
    )
    return (await connection.execute(fenced.order_by(e.fenced_at).limit(1))).scalar_one_or_none()


async def runs_waiting_for(connection: AsyncConnection, client_id: UUID) -> list[UUID]:
    """Running runs in which the client works on a task."""
    statement = (
        sa.select(t.runs.c.id)
        .join(t.tasks, t.tasks.c.run_id == t.runs.c.id)
        .where(t.tasks.c.client_id == client_id, t.tasks.c.status == "leased", t.runs.c.status == "running")
        .distinct()
    )
    return list((await connection.execute(statement)).scalars())


@dataclass(frozen=True, slots=True)
class Figures:
    runs: dict[str, int]
    """Counts by status."""
    open_tasks: dict[str, int]
    oldest_kernel_at: datetime | None
    """When the oldest kernel that nobody has finished was asked for."""
    plain_blobs: int
    """How many blobs an earlier version stored that are not sealed yet."""
    jobs_set_aside: dict[str, int]
    """Jobs that broke and wait for another attempt, by kind."""
    open_jobs: dict[tuple[str, str], int]
    """Jobs that nobody has finished, by kind and status."""
    open_rounds: int
    erasures: dict[str, int]
    """Requests to forget by status, duplicates of others included."""
    first_deadlines: dict[str, datetime]
    """The earliest legal deadline among the requests of each status that are not over."""
    certificates: int


async def figures(connection: AsyncConnection) -> Figures:
    runs = sa.select(t.runs.c.status, sa.func.count().label("num")).group_by(t.runs.c.status)
    open_tasks = (
        sa.select(t.tasks.c.status, sa.func.count().label("num")).where(t.IS_OPEN_TASK).group_by(t.tasks.c.status)
    )
    oldest = sa.select(sa.func.min(t.jobs.c.created_at)).where(t.jobs.c.kind == "kernel", t.IS_OPEN_JOB)
    broken = (
        sa.select(t.jobs.c.kind, sa.func.count().label("num"))
        .where(t.IS_OPEN_JOB, t.jobs.c.num_failures > 0)
        .group_by(t.jobs.c.kind)
    )
    plain = sa.select(sa.func.count()).select_from(t.blobs).where(t.blobs.c.data_key.is_(None))
    open_jobs = (
        sa.select(t.jobs.c.kind, t.jobs.c.status, sa.func.count().label("num"))
        .where(t.IS_OPEN_JOB)
        .group_by(t.jobs.c.kind, t.jobs.c.status)
    )
    open_rounds = sa.select(sa.func.count()).select_from(t.rounds).where(t.IS_OPEN_ROUND)
    e = t.erasures.c
    erasures = (
        await connection.execute(
            sa.select(e.status, sa.func.count().label("num"), sa.func.min(e.legal_deadline).label("first")).group_by(
                e.status
            )
        )
    ).all()
    certificates = sa.select(sa.func.count()).select_from(t.certificates)
    return Figures(
        open_jobs={(row.kind, row.status): row.num for row in await connection.execute(open_jobs)},
        open_rounds=(await connection.execute(open_rounds)).scalar_one(),
        erasures={row.status: row.num for row in erasures},
        first_deadlines={row.status: row.first for row in erasures if row.status not in SETTLED},
        certificates=(await connection.execute(certificates)).scalar_one(),
        plain_blobs=(await connection.execute(plain)).scalar_one(),
        jobs_set_aside={row.kind: row.num for row in await connection.execute(broken)},
        runs={row.status: row.num for row in await connection.execute(runs)},
        open_tasks={row.status: row.num for row in await connection.execute(open_tasks)},
        oldest_kernel_at=(await connection.execute(oldest)).scalar_one_or_none(),
    )
