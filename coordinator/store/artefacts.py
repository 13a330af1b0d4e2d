"""What the certificate of a request accounts for, a page at a time, as there may be a million of it; and the salts that
are still here although their requests are settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from services.audit.predicate import ArtefactKind, Disposition

PAGE: Final = 5000


class Listed(NamedTuple):
    """`disposition` None: it is to be found out."""

    kind: ArtefactKind
    digest: str
    disposition: Disposition | None
    reason: str


class Salted(NamedTuple):
    """A completed request whose salt is not yet in an opening."""

    erasure_id: UUID
    federation_id: UUID
    salt: str
    names: tuple[str, ...]


async def note_caches(connection: AsyncConnection, erasure_id: UUID, caches: Mapping[str, bool]) -> None:
    """Which workers may have superseded models in their caches, by a keyed digest of their name, and whether each has
    said that it dropped them: as it is now."""
    a = t.artefacts
    await connection.execute(a.delete().where(a.c.erasure_id == erasure_id, a.c.kind == "worker-cache"))
    rows = [
        {
            "erasure_id": erasure_id,
            "kind": "worker-cache",
            "digest": digest,
            "disposition": "reported" if is_confirmed else "unconfirmed",
        }
        for digest, is_confirmed in caches.items()
    ]
    if rows:
        await connection.execute(a.insert(), rows)


async def planned(connection: AsyncConnection, erasure_id: UUID) -> dict[ArtefactKind, int]:
    """How many of each kind there are."""
    a = t.artefacts.c
    rows = await connection.execute(
        sa.select(a.kind, sa.func.count().label("num")).where(a.erasure_id == erasure_id).group_by(a.kind)
    )
    return {row.kind: row.num for row in rows}


async def page(connection: AsyncConnection, erasure_id: UUID, after: Listed | None) -> list[Listed]:
    """The artefacts that follow `after`, in the order of kind and digest; at most `PAGE`, none at the end."""
    a = t.artefacts.c
    statement = sa.select(a.kind, a.digest, a.disposition, a.reason).where(a.erasure_id == erasure_id)
    if after is not None:
        statement = statement.where(sa.tuple_(a.kind, a.digest) > (after.kind, after.digest))
    rows = await connection.execute(statement.order_by(a.kind, a.digest).limit(PAGE))
    return list(map(Listed._make, rows.all()))


async def salted(connection: AsyncConnection) -> list[Salted]:
    e, s = t.erasures.c, t.subjects.c
    rows = await connection.execute(
        sa.select(e.id, e.federation_id, e.salt, s.name)
        .join(t.subjects, s.erasure_id == e.id)
        .where(e.status == "completed", e.salt != "")
        .order_by(e.id, s.name)
    )
    found: dict[tuple[UUID, UUID, str], list[str]] = {}
    for row in rows:
        found.setdefault((row.id, row.federation_id, row.salt), []).append(row.name)
    return [Salted(*key, tuple(names)) for key, names in found.items()]


async def forget_salt(connection: AsyncConnection, erasure_id: UUID) -> None:
    await connection.execute(t.erasures.update().where(t.erasures.c.id == erasure_id).values(salt=""))
