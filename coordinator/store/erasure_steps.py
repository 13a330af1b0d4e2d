"""What the steps of an erasure that reach outside the database ask about it. Reads only."""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.erasure import cuts
from coordinator.store import tables as t
from coordinator.store.slices import load_lineage


async def cohorts_with(connection: AsyncConnection, client_ids: list[UUID]) -> list[tuple[UUID, UUID, int]]:
    """(run, cohort, epoch) of every cohort that has one of the clients as a member, past or present."""
    statement = (
        sa.select(t.cohorts.c.run_id, t.cohorts.c.id, t.cohorts.c.epoch)
        .join(t.members, t.members.c.cohort_id == t.cohorts.c.id)
        .where(t.members.c.client_id.in_(client_ids), t.cohorts.c.phase != "retired")
        .distinct()
        .order_by(t.cohorts.c.run_id, t.cohorts.c.id)
    )
    return [(row.run_id, row.id, row.epoch) for row in await connection.execute(statement)]


async def status(connection: AsyncConnection, erasure_id: UUID) -> str | None:
    """One whose tombstone could not be written counts as received."""
    c = t.erasures.c
    row = (await connection.execute(sa.select(c.status, c.fenced_at).where(c.id == erasure_id))).first()
    if row is None:
        return None
    return "received" if row.status == "requires_action" and row.fenced_at is None else str(row.status)


async def version(connection: AsyncConnection, erasure_id: UUID) -> int | None:
    statement = sa.select(t.erasures.c.version).where(t.erasures.c.id == erasure_id)
    return (await connection.execute(statement)).scalar_one_or_none()


async def names_to_erase(connection: AsyncConnection, client_ids: list[UUID]) -> list[str]:
    """The names of those among the clients that were not erased yet."""
    c = t.clients.c
    statement = sa.select(c.name).where(c.id.in_(client_ids), c.status != "erased").order_by(c.name)
    return list((await connection.execute(statement)).scalars())


async def taken_out_of_use(connection: AsyncConnection, client_ids: set[UUID]) -> tuple[set[str], set[str]]:
    """The digests of models, and of the leavers' own updates, that the fence of a request to forget these clients takes
    out of use."""
    lineage = await load_lineage(connection, client_ids)
    tainted = cuts.tainted_checkpoints(lineage, frozenset(client_ids))
    u = t.updates.c
    own = sa.select(u.digest).where(u.client_id.in_(client_ids), u.digest.is_not(None))
    return {lineage.checkpoints[c].digest for c in tainted}, set((await connection.execute(own)).scalars())
