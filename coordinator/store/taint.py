"""Digests of what erasures took out of use and this database has no other record of: it was restored from before."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.tables.taint import taint_lists, tainted

BATCH = 5000
OF_MODELS: Final = ("checkpoint", "merge", "step")
OF_CLIENTS: Final = ("update", "history", "upload")
"""The kinds of artefacts that are models or steps towards them, and those that clients sent."""
_LEARN = insert(tainted).on_conflict_do_nothing()


async def known_sizes(connection: AsyncConnection) -> dict[UUID, int]:
    """How much of the list of each request is known here, in bytes."""
    rows = await connection.execute(sa.select(taint_lists.c.request_id, taint_lists.c.num_bytes))
    return {row.request_id: row.num_bytes for row in rows}


_SUPERSEDED = sa.select(t.checkpoints.c.digest).where(t.checkpoints.c.superseded_by == sa.bindparam("request"))
_PURGED = sa.select(t.artefacts.c.kind, t.artefacts.c.digest).where(
    t.artefacts.c.erasure_id == sa.bindparam("request"), t.artefacts.c.kind.in_((*OF_MODELS, *OF_CLIENTS))
)


async def taken_by(connection: AsyncConnection, request_id: UUID) -> tuple[set[str], set[str]]:
    """The digests of models, and of what clients sent, that this database knows a request to have taken out of use."""
    purged = (await connection.execute(_PURGED, {"request": request_id})).all()
    models = set((await connection.execute(_SUPERSEDED, {"request": request_id})).scalars())
    models |= {row.digest for row in purged if row.kind in OF_MODELS}
    return models, {row.digest for row in purged if row.kind in OF_CLIENTS}


async def note(connection: AsyncConnection, request_id: UUID, num_bytes: int) -> None:
    """So much of the request's list is known here; never less than before."""
    new = insert(taint_lists).values(request_id=request_id, num_bytes=num_bytes)
    is_more = taint_lists.c.num_bytes < new.excluded.num_bytes
    longer = {"num_bytes": new.excluded.num_bytes}
    await connection.execute(new.on_conflict_do_update(index_elements=["request_id"], set_=longer, where=is_more))


async def learn(
    connection: AsyncConnection, federation_id: UUID, models: frozenset[str], updates: frozenset[str]
) -> bool:
    """False: this database has no such federation, and nobody can send anything to it."""
    known = sa.select(t.federations.c.id).where(t.federations.c.id == federation_id)
    if (await connection.execute(known)).first() is None:
        return False
    rows = [
        {"federation_id": federation_id, "digest": digest, "is_model": is_model}
        for digests, is_model in ((models, True), (updates, False))
        for digest in sorted(digests)
    ]
    for start in range(0, len(rows), BATCH):
        await connection.execute(_LEARN, rows[start : start + BATCH])
    return True
