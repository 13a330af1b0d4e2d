"""What is read about samples that clients must leave out, and what a client contributed before it had to."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Exclusion
from coordinator.engine.erasure.samples import digest
from coordinator.store import tables as t
from coordinator.store.rows import fetch, fetch_by
from services.wire.v1.erasure import ErasureExclusion
from services.wire.v1.exclusions import ExcludedSamples, Exclusions


async def of_client(connection: AsyncConnection, client_id: UUID) -> Exclusions:
    """Everything that the client must leave out, of all requests, oldest first."""
    found = await fetch(connection, Exclusion, t.exclusions.c.client_id == client_id)
    found.sort(key=lambda x: (x.ordered_at, x.erasure_id))
    items = [ExcludedSamples(erasure_id=x.erasure_id, samples=x.samples) for x in found]
    return Exclusions(digest=digest(found) if found else None, items=items)


async def of_requests(connection: AsyncConnection, ids: Sequence[UUID]) -> dict[UUID, list[ErasureExclusion]]:
    found: dict[UUID, list[ErasureExclusion]] = {}
    for x in sorted(await fetch_by(connection, Exclusion, t.exclusions.c.erasure_id, ids), key=lambda x: x.client_name):
        shown = ErasureExclusion(
            client=x.client_name,
            num_samples=len(x.samples),
            ordered_at=x.ordered_at,
            acknowledged_at=x.acked_at,
            problem=x.problem,
        )
        found.setdefault(x.erasure_id, []).append(shown)
    return found


async def acknowledged(connection: AsyncConnection, erasure_id: UUID) -> set[UUID]:
    """The clients whose workers have the request's samples in their ledgers."""
    c = t.exclusions.c
    statement = sa.select(c.client_id).where(c.erasure_id == erasure_id, c.acked_at.is_not(None))
    return set((await connection.execute(statement)).scalars())
