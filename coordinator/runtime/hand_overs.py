"""Links that hand a certificate over to somebody without a credential: the client who left. The secret is shown once,
only its hash is stored, and what it opens is handed over once."""

from __future__ import annotations

import hmac
import os
import secrets
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.runtime.accounts import hash_of
from coordinator.runtime.acts import Act, Actor, Acts
from coordinator.store import hand_overs
from coordinator.store.database import Database
from coordinator.store.hand_overs import KnownHandOver
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.wire.v1.acts import ActAbout
from services.wire.v1.signin import HandOver, IssuedHandOver

log = structlog.get_logger()


class HandOvers:
    def __init__(self, database: Database, acts: Acts, public_url: str | None) -> None:
        self._database, self._acts = database, acts
        self._page = f"{public_url or ''}/hand-over"

    async def make(self, erasure_id: UUID, federation_id: UUID, lasts: timedelta, by: Actor) -> IssuedHandOver:
        secret = secrets.token_urlsafe(32)

        async def add(connection: AsyncConnection, now: datetime) -> HandOver:
            made = HandOver(
                id=uuid7(now, os.urandom(10)), erasure_id=erasure_id, created_at=now, expires_at=now + lasts
            )
            await hand_overs.add(connection, made, hash_of(secret))
            return made

        made = await self._acts.recorded(_act("handover.made", federation_id, by, erasure_id), add)
        log.info("handover.made", hand_over=str(made.id), request=str(erasure_id))
        return IssuedHandOver(**dict(made), url=f"{self._page}#{made.id}.{secret}", secret_shown_once=secret)

    async def check(self, hand_over_id: UUID, secret: str) -> KnownHandOver:
        """The link, if it can be opened with this secret. Changes nothing."""
        async with self._database.read() as connection:
            known = await hand_overs.find(connection, hand_over_id)
            now = await self._database.now(connection)
        if known is None or not hmac.compare_digest(known.secret_hash, hash_of(secret)):
            raise Rejected("not-found", "there is no such link: copy it whole, up to its last character")
        _check_open(known.shown, now)
        return known

    async def spend(self, known: KnownHandOver) -> None:
        """Whoever opens it was erased, or is somebody whom they gave the link: the log says that it was opened, and
        nothing about them."""
        link = known.shown
        act = _act("handover.opened", known.federation_id, Actor("client", "", link.id, None, ""), link.erasure_id)

        async def spend(connection: AsyncConnection, now: datetime) -> None:
            if not await hand_overs.spend(connection, link.id, now):
                raise Rejected("already-spent", _SPENT)

        await self._acts.recorded(act, spend)
        log.info("handover.opened", hand_over=str(link.id), request=str(link.erasure_id))

    async def revoke(self, known: KnownHandOver, by: Actor) -> None:
        """Nothing happens to one that was revoked before."""
        link = known.shown
        if link.opened_at is not None:
            raise _opened(link.opened_at)
        if link.revoked_at is not None:
            return
        act = _act("handover.revoked", known.federation_id, by, link.erasure_id)

        async def revoke(connection: AsyncConnection, now: datetime) -> None:
            if not await hand_overs.revoke(connection, link.id, now):
                raise Rejected("already-spent", "it was opened or revoked at this moment; look again")

        await self._acts.recorded(act, revoke)
        log.info("handover.revoked", hand_over=str(link.id), request=str(link.erasure_id))


_SPENT = "this link was opened before, and hands over once: ask whoever sent it for another"


def _check_open(link: HandOver, now: datetime) -> None:
    if link.opened_at is not None:
        raise Rejected("already-spent", _SPENT)
    if link.revoked_at is not None:
        raise Rejected("link-expired", "this link was revoked: ask whoever sent it for another")
    if link.expires_at <= now:
        raise Rejected("link-expired", "this link has expired: ask whoever sent it for another")


def _opened(at: datetime) -> Rejected:
    return Rejected("already-spent", f"it was opened on {at:%Y-%m-%d at %H:%M} UTC; what was handed over stays so")


def _act(name: str, federation_id: UUID, by: Actor, erasure_id: UUID) -> Act:
    return Act(name, federation_id, by, ActAbout(kind="request", id=erasure_id))
