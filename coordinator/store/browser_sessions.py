"""Rows of browser sessions: every replica reads them, none keeps them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t

_s = t.browser_sessions.c


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """`seen_at` is a minute behind at most; `ends_at` is the latest that it can last."""

    id: UUID
    credential_id: UUID
    secret_hash: str
    created_at: datetime
    seen_at: datetime
    ends_at: datetime


async def add(connection: AsyncConnection, session: BrowserSession) -> None:
    """The rows of those that are long over go."""
    await connection.execute(t.browser_sessions.delete().where(_s.ends_at < session.created_at))
    await connection.execute(t.browser_sessions.insert().values(asdict(session)))


async def find(connection: AsyncConnection, session_id: UUID) -> BrowserSession | None:
    row = (await connection.execute(t.browser_sessions.select().where(_s.id == session_id))).first()
    return None if row is None else BrowserSession(**row._mapping)


async def note_seen(connection: AsyncConnection, session_id: UUID, at: datetime) -> None:
    await connection.execute(t.browser_sessions.update().where(_s.id == session_id, _s.seen_at < at).values(seen_at=at))


async def remove(connection: AsyncConnection, session_id: UUID) -> bool:
    """Whether it was there."""
    return bool((await connection.execute(t.browser_sessions.delete().where(_s.id == session_id))).rowcount)
