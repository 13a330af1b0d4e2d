"""What the whole installation stores and has to do. Reads only."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from services.wire.v1.views import QueueFigures, VerificationKey


async def storage(connection: AsyncConnection) -> dict[UUID, tuple[int, int]]:
    """Bytes and number of the blobs of each federation."""
    b = t.blobs.c
    statement = (
        sa.select(
            t.federations.c.id,
            sa.func.coalesce(sa.func.sum(b.num_bytes), 0).label("num_bytes"),
            sa.func.count(b.id).label("num"),
        )
        .outerjoin(t.blobs, b.federation_id == t.federations.c.id)
        .group_by(t.federations.c.id)
        .order_by(t.federations.c.id)
    )
    return {row.id: (int(row.num_bytes), row.num) for row in await connection.execute(statement)}


async def queue(connection: AsyncConnection) -> QueueFigures:
    j = t.jobs.c
    statement = (
        sa.select(j.status, sa.func.count().label("num"), sa.func.min(j.created_at).label("oldest"))
        .where(t.IS_OPEN_JOB)
        .group_by(j.status)
    )
    rows = (await connection.execute(statement)).all()
    oldest: datetime | None = min((row.oldest for row in rows), default=None)
    return QueueFigures(jobs_by_status={row.status: row.num for row in rows}, oldest_at=oldest)


async def keys(connection: AsyncConnection) -> list[VerificationKey]:
    """Every key that ever signed here, in their order; the last one signs now."""
    c = t.signing_keys.c
    statement = sa.select(c.key_id, c.public_key, c.recorded_at).order_by(c.number)
    rows = (await connection.execute(statement)).all()
    ends = [row.recorded_at for row in rows[1:]] + [None]
    return [
        VerificationKey(key_id=row.key_id, public_key=row.public_key, until=until, **{"from": row.recorded_at})
        for row, until in zip(rows, ends, strict=True)
    ]
