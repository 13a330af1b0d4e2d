"""What the doors of the API ask the database: who may read a blob, whose runs a full store stops, figures for
`/metrics`. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.prepared import prepared

_NOTHING = prepared(t.jobs.update().where(sa.false()).values(attempt=t.jobs.c.attempt))


async def takes_writes(connection: AsyncConnection) -> None:
    """Raises when the database does not, or does not answer. Changes nothing."""
    await connection.execute(_NOTHING, {})


_own_blob = (t.blobs.c.federation_id == sa.bindparam("owner")) & (t.blobs.c.digest == sa.bindparam("digest"))
_held_task = sa.exists().where(
    t.tasks.c.client_id == sa.bindparam("client"),
    t.IS_CLAIMABLE_OR_LEASED,
    t.tasks.c.status == "leased",
    (t.tasks.c.model_digest == sa.bindparam("digest"))
    | sa.cast(t.tasks.c.work, sa.Text).contains(sa.bindparam("digest")),
)
_holds_task = sa.select(sa.exists().where(t.tasks.c.client_id == sa.bindparam("client"), t.tasks.c.status == "leased"))
_recorded = prepared(sa.select(t.blobs.c.num_bytes).where(_own_blob))
_not_a_clients = prepared(_recorded.where(t.blobs.c.uploaded_by.is_(None)))
_is_let_in = sa.exists().where(
    t.clients.c.id == sa.bindparam("client"), (t.clients.c.status != "erased") | t.clients.c.needed_by.is_not(None)
)
_readable = prepared(_recorded.where((t.blobs.c.uploaded_by == sa.bindparam("client")) | _held_task, _is_let_in))


async def recorded_bytes(connection: AsyncConnection, federation_id: UUID, digest: str) -> int | None:
    """The size of a blob that the federation has; None when it was never recorded, or collected."""
    found = await connection.execute(_recorded, {"owner": federation_id, "digest": digest})
    return found.scalar_one_or_none()


_STORED = prepared(
    sa.select(
        t.blobs.c.federation_id, t.blobs.c.uploaded_by, sa.func.sum(t.blobs.c.num_bytes).label("num_bytes")
    ).group_by(t.blobs.c.federation_id, t.blobs.c.uploaded_by)
)


async def stored_bytes(connection: AsyncConnection) -> list[tuple[UUID, UUID | None, int]]:
    """(federation, client, bytes) of everything that is recorded; what is not a client's comes with None."""
    rows = await connection.execute(_STORED)
    return [(row.federation_id, row.uploaded_by, int(row.num_bytes)) for row in rows]


async def bytes_of_federation(connection: AsyncConnection, federation_id: UUID, digest: str) -> int | None:
    """Like `recorded_bytes`, of what was not only uploaded by a client."""
    found = await connection.execute(_not_a_clients, {"owner": federation_id, "digest": digest})
    return found.scalar_one_or_none()


async def bytes_for_client(
    connection: AsyncConnection, federation_id: UUID, digest: str, client_id: UUID
) -> int | None:
    """Like `recorded_bytes`, for a client: only what it uploaded, or the models of a task that it holds."""
    wanted = {"owner": federation_id, "digest": digest, "client": client_id}
    return (await connection.execute(_readable, wanted)).scalar_one_or_none()


async def holds_task(connection: AsyncConnection, client_id: UUID) -> bool:
    return bool((await connection.execute(_holds_task, {"client": client_id})).scalar())


async def erased_by(connection: AsyncConnection, client_id: UUID) -> UUID | None:
    """The request that erased the client."""
    e, s = t.erasures.c, t.subjects.c
    fenced = (
        sa.select(e.id)
        .join(t.subjects, s.erasure_id == e.id)
        .where(s.client_id == client_id, e.scope == "client", e.fenced_at.is_not(None))
    )
    return (await connection.execute(fenced.order_by(e.fenced_at).limit(1))).scalar_one_or_none()


async def superseded_by(connection: AsyncConnection, federation_id: UUID, digest: str) -> UUID | None:
    """The erasure since which the model of that digest is not served; None while any clean checkpoint has its bytes."""
    c = t.checkpoints.c
    statement = (
        sa.select(c.superseded_by)
        .join(t.runs, t.runs.c.id == c.run_id)
        .where(t.runs.c.federation_id == federation_id, c.digest == digest)
    )
    found = (await connection.execute(statement)).scalars().all()
    return found[0] if found and None not in found else None


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
    """By status."""
    open_tasks: dict[str, int]
    oldest_kernel_at: datetime | None
    """When the oldest kernel that nobody has finished was asked for."""
    jobs_set_aside: dict[str, int]
    """Jobs that broke and wait for another attempt, by kind."""


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
    return Figures(
        jobs_set_aside={row.kind: row.num for row in await connection.execute(broken)},
        runs={row.status: row.num for row in await connection.execute(runs)},
        open_tasks={row.status: row.num for row in await connection.execute(open_tasks)},
        oldest_kernel_at=(await connection.execute(oldest)).scalar_one_or_none(),
    )
