"""Callbacks of requests whose secrets an older release stored as they came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t

_IS_UNSEALED: Final = sa.cast(t.erasures.c.callbacks, sa.Text).contains("whsec_")


async def unsealed(connection: AsyncConnection) -> dict[UUID, list[dict[str, Any]]]:
    """By request, all of its callbacks."""
    statement = sa.select(t.erasures.c.id, t.erasures.c.callbacks).where(_IS_UNSEALED)
    return {row.id: row.callbacks for row in await connection.execute(statement)}


async def replace(connection: AsyncConnection, sealed: Mapping[UUID, Sequence[dict[str, Any]]]) -> None:
    """Unless another process has sealed them meanwhile."""
    for erasure_id in sorted(sealed):
        own = (t.erasures.c.id == erasure_id) & _IS_UNSEALED
        await connection.execute(t.erasures.update().where(own).values(callbacks=list(sealed[erasure_id])))
