"""Sessions of browsers. A session stands for a credential and is worth what that is worth; its cookie is
`<session id>.<secret>`, of which only the secret's hash is stored.

What a script of the same page sends with each change (the CSRF token) is derived from the secret: nobody can make one
up who does not have the session, and it says nothing about the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.bus.port import CREDENTIALS_DROPPED, Bus
from coordinator.runtime.accounts import hash_of
from coordinator.runtime.acts import Act, Actor, Acts
from coordinator.runtime.transactions import transact
from coordinator.store import browser_sessions
from coordinator.store.browser_sessions import BrowserSession
from coordinator.store.database import Database, Unavailable
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.wire.v1.acts import ActAbout

log = structlog.get_logger()
SEEN_EVERY: Final = timedelta(minutes=1)
"""How often it is written down that a session is in use."""
CLOCK_SLACK: Final = timedelta(minutes=5)
"""A session that begins further ahead than this was begun under a clock that was off, and is over."""
T = TypeVar("T")
_COOKIE: Final = re.compile(r"([0-9a-f]{32})\.([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """What the browser is given."""

    cookie: str
    csrf: str
    ends_at: datetime


def csrf_of(cookie: str) -> str:
    return hmac.new(cookie.partition(".")[2].encode(), b"lethe-csrf", hashlib.sha256).hexdigest()


class BrowserSessions:
    def __init__(self, database: Database, bus: Bus, acts: Acts, idle: timedelta, longest: timedelta) -> None:
        self._database, self._bus, self._acts = database, bus, acts
        self._idle, self._longest = idle, longest

    async def begin(self, actor: Actor, federation_id: UUID | None) -> OpenedSession:
        """Always under a new id and secret: whatever the browser had before is worth nothing for it."""
        secret = secrets.token_urlsafe(32)

        async def add(connection: AsyncConnection, now: datetime) -> BrowserSession:
            ends_at = now + self._longest
            begun = BrowserSession(uuid7(now, os.urandom(10)), actor.credential_id, hash_of(secret), now, now, ends_at)
            await browser_sessions.add(connection, begun)
            return begun

        begun = await self._recorded("session.begun", actor, federation_id, add)
        log.info("session.begun", credential=str(actor.credential_id), role=actor.role)
        cookie = f"{begun.id.hex}.{secret}"
        return OpenedSession(cookie, csrf_of(cookie), begun.ends_at)

    async def find(self, cookie: str, *, is_use: bool = True) -> BrowserSession:
        """The session whose cookie it is; notes that it is in use, if this is a use."""
        session_id, secret = _split(cookie)
        async with self._database.read() as connection:
            now = await self._database.about_now(connection)
            found = await browser_sessions.find(connection, session_id)
        if found is None or not hmac.compare_digest(found.secret_hash, hash_of(secret)):
            raise _ended()
        is_ahead = found.created_at - now > CLOCK_SLACK
        if now >= found.ends_at or now - found.seen_at >= self._idle or is_ahead:
            raise _ended()
        if is_use and now - found.seen_at >= min(SEEN_EVERY, self._idle / 10):
            with suppress(Unavailable):  # what can be read is served while the database takes no writes
                async with self._database.write(is_durable=False) as connection:
                    await browser_sessions.note_seen(connection, found.id, now)
        return found

    async def end(self, cookie: str, actor: Actor, federation_id: UUID | None) -> None:
        session_id, _ = _split(cookie)
        await self._recorded(
            "session.ended", actor, federation_id, lambda connection, _: browser_sessions.remove(connection, session_id)
        )
        # Replicas remember for a moment who a session's cookie belongs to.
        self._bus.publish(CREDENTIALS_DROPPED, str(actor.credential_id))
        log.info("session.ended", credential=str(actor.credential_id), role=actor.role)

    async def _recorded(
        self,
        name: str,
        actor: Actor,
        federation_id: UUID | None,
        work: Callable[[AsyncConnection, datetime], Awaitable[T]],
    ) -> T:
        if federation_id is not None:
            about = ActAbout(kind="credential", id=actor.credential_id)
            return await self._acts.recorded(Act(name, federation_id, actor, about), work)

        async def at_its_instant(connection: AsyncConnection) -> T:
            return await work(connection, await self._database.now(connection))

        # The installation's admin belongs to no federation's log of acts.
        return await transact(self._database, at_its_instant)


def _split(cookie: str) -> tuple[UUID, str]:
    """(session id, secret)."""
    match = _COOKIE.fullmatch(cookie)
    if match is None:
        raise _ended()
    return UUID(match[1]), match[2]


def _ended() -> Rejected:
    return Rejected("session-ended", "this session is over, or is not one of this installation: sign in again")
