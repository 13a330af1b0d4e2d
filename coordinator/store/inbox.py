"""The inbox: requests that start work and were carried out, so that a repeated one finds what the first one made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from services.core.errors import Rejected

_i = t.inbox.c


@dataclass(frozen=True, slots=True)
class InboxKey:
    """Names a request that starts work, so that its repetition finds what the first one made."""

    principal: str
    route: str
    key: str
    fingerprint: str
    makes: UUID
    """The id of what the request creates when it is new."""


async def made_before(connection: AsyncConnection, key: InboxKey) -> UUID | None:
    """What the request made when it was carried out; None: it is new. Raises `Rejected` for another one under the same
    key."""
    same = (_i.principal == key.principal) & (_i.route == key.route) & (_i.key == key.key)
    row = (await connection.execute(t.inbox.select().where(same))).first()
    if row is None:
        return None
    if row.fingerprint != key.fingerprint:
        detail = "this Idempotency-Key was used with another body; use a new key for a new request"
        raise Rejected("idempotency-key-reused", detail)
    made: UUID = row.made
    return made


async def remember(connection: AsyncConnection, key: InboxKey, now: datetime) -> None:
    row = {
        "principal": key.principal,
        "route": key.route,
        "key": key.key,
        "fingerprint": key.fingerprint,
        "made": key.makes,
        "created_at": now,
    }
    await connection.execute(t.inbox.insert().values(row))
