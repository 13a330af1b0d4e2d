"""What the database knows of the evidence that lies outside it: how far the log of tombstones is fenced here, which
keys signed certificates, and what happened to either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED
from coordinator.store import tables as t
from coordinator.store.gate import Mark

_state = t.evidence_state
_REPORT_ONCE = insert(t.incidents).on_conflict_do_nothing()
_MARK = sa.select(_state.c.num_tombstones, _state.c.digest)


class Incident(NamedTuple):
    at: datetime
    kind: str
    explanation: str


@dataclass(frozen=True, slots=True)
class SigningKey:
    key_id: str
    public_key: str
    """PEM."""


async def mark(connection: AsyncConnection) -> Mark | None:
    """None: this database was never compared with a log."""
    row = (await connection.execute(_MARK, {})).first()
    return None if row is None else Mark(row.num_tombstones, row.digest)


async def move_mark(connection: AsyncConnection, before: Mark | None, after: Mark) -> bool:
    """Whether it stood there; if not, somebody else has moved it meanwhile."""
    values = {"num_tombstones": after.num_tombstones, "digest": after.digest}
    if before is None:
        if await mark(connection) is not None:
            return False
        await connection.execute(_state.insert().values(id=1, **values))
        return True
    stands = (_state.c.num_tombstones == before.num_tombstones) & (_state.c.digest == before.digest)
    moved = await connection.execute(_state.update().where(stands).values(**values))
    return bool(moved.rowcount)


async def fenced_requests(connection: AsyncConnection) -> list[UUID]:
    """Oldest first. Each has an entry in the log: it is written before the fence."""
    c = t.erasures.c
    found = await connection.execute(sa.select(c.id).where(c.fenced_at.is_not(None)).order_by(c.fenced_at, c.id))
    return list(found.scalars())


async def awaits_fence(connection: AsyncConnection, request_id: UUID, client_ids: Sequence[UUID]) -> bool:
    """Whether a request with a tombstone is unknown or not fenced here, while any of its clients is there. One that
    repeats another is as far as that one."""
    c = t.erasures.c
    row = (await connection.execute(sa.select(c.status, c.fenced_at, c.duplicate_of).where(c.id == request_id))).first()
    if row is not None and (row.fenced_at is not None or row.duplicate_of is not None or row.status in SETTLED):
        return False
    is_there = t.clients.c.id.in_(client_ids) & (t.clients.c.status != "erased")
    return bool((await connection.execute(sa.select(sa.exists().where(is_there)))).scalar())


# --- keys -------------------------------------------------------------------------------------------------------------


async def signing_keys(connection: AsyncConnection) -> list[SigningKey]:
    """All keys in their order; the last one signs now."""
    c = t.signing_keys.c
    rows = await connection.execute(sa.select(c.key_id, c.public_key).order_by(c.number))
    return [SigningKey(row.key_id, row.public_key) for row in rows]


async def record_signing_keys(connection: AsyncConnection, keys: Sequence[SigningKey], now: datetime) -> int:
    """Behind those there are; one that is known stays where it is. Returns how many are new."""
    known = {key.key_id for key in await signing_keys(connection)}
    new = [key for key in keys if key.key_id not in known]
    rows = [
        {"number": number, "key_id": key.key_id, "public_key": key.public_key, "recorded_at": now}
        for number, key in enumerate(new, len(known) + 1)
    ]
    if rows:
        await connection.execute(t.signing_keys.insert(), rows)
    return len(rows)


async def has_certificates(connection: AsyncConnection) -> bool:
    return bool((await connection.execute(sa.select(sa.exists(t.certificates.select())))).scalar())


# --- incidents --------------------------------------------------------------------------------------------------------


async def report(connection: AsyncConnection, incident_id: UUID, incident: Incident, reported_by: str) -> None:
    row = {**incident._asdict(), "id": incident_id, "reported_by": reported_by}
    await connection.execute(t.incidents.insert().values(row))


async def report_once(connection: AsyncConnection, incident_id: UUID, incident: Incident, reported_by: str) -> None:
    """Like `report`, for what several processes may find at once."""
    row = {**incident._asdict(), "id": incident_id, "reported_by": reported_by}
    await connection.execute(_REPORT_ONCE, row)


async def reported(connection: AsyncConnection, ids: Sequence[UUID]) -> set[UUID]:
    """The incidents among these that were reported."""
    found = await connection.execute(sa.select(t.incidents.c.id).where(t.incidents.c.id.in_(ids)))
    return set(found.scalars())


async def incidents(connection: AsyncConnection, since: datetime | None = None) -> list[Incident]:
    """Oldest first; `since`: those of that instant and later."""
    c = t.incidents.c
    statement = sa.select(c.at, c.kind, c.explanation).order_by(c.at, c.id)
    rows = await connection.execute(statement if since is None else statement.where(c.at >= since))
    return [Incident(row.at, row.kind, row.explanation) for row in rows]
