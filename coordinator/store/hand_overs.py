"""Rows of links that hand a certificate over once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from services.wire.v1.resources import Page
from services.wire.v1.signin import HandOver

_h, _e = t.hand_overs.c, t.erasures.c
_SHOWN = [_h[name] for name in HandOver.model_fields]
_JOINED = sa.select(*_SHOWN, _h.secret_hash, _e.federation_id).join(t.erasures, _e.id == _h.erasure_id)


@dataclass(frozen=True, slots=True)
class KnownHandOver:
    shown: HandOver
    federation_id: UUID
    secret_hash: str


async def add(connection: AsyncConnection, new: HandOver, secret_hash: str) -> None:
    await connection.execute(t.hand_overs.insert().values({**dict(new), "secret_hash": secret_hash}))


async def find(connection: AsyncConnection, hand_over_id: UUID) -> KnownHandOver | None:
    row: Any = (await connection.execute(_JOINED.where(_h.id == hand_over_id))).first()
    return None if row is None else KnownHandOver(_hand_over(row), row.federation_id, row.secret_hash)


async def of_request(connection: AsyncConnection, erasure_id: UUID, position: Position) -> Page[HandOver]:
    """Newest first."""
    own = sa.select(*_SHOWN).where(_h.erasure_id == erasure_id)
    return await page(connection, own, _h.id, position, _hand_over, newest_first=True)


async def spend(connection: AsyncConnection, hand_over_id: UUID, now: datetime) -> bool:
    """Whether it was still there to be opened; of several at once one has it."""
    return await _settle(connection, hand_over_id, opened_at=now)


async def revoke(connection: AsyncConnection, hand_over_id: UUID, now: datetime) -> bool:
    """Whether it was still there to be opened."""
    return await _settle(connection, hand_over_id, revoked_at=now)


async def _settle(connection: AsyncConnection, hand_over_id: UUID, **values: datetime) -> bool:
    is_open = (_h.id == hand_over_id) & _h.opened_at.is_(None) & _h.revoked_at.is_(None)
    return bool((await connection.execute(t.hand_overs.update().where(is_open).values(values))).rowcount)


def _hand_over(row: Any) -> HandOver:
    return HandOver(**{name: row._mapping[name] for name in HandOver.model_fields})
