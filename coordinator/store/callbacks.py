"""Deliveries to callbacks, and callbacks whose secrets an older release stored as they came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Delivery
from coordinator.store import tables as t

_IS_UNSEALED: Final = sa.cast(t.erasures.c.callbacks, sa.Text).contains("whsec_")


async def unsealed(connection: AsyncConnection) -> dict[UUID, list[dict[str, Any]]]:
    """All callbacks of each request that has an unsealed one."""
    statement = sa.select(t.erasures.c.id, t.erasures.c.callbacks).where(_IS_UNSEALED)
    return {row.id: row.callbacks for row in await connection.execute(statement)}


async def replace(connection: AsyncConnection, sealed: Mapping[UUID, Sequence[dict[str, Any]]]) -> None:
    """Unless another process has sealed them meanwhile."""
    for erasure_id in sorted(sealed):
        own = (t.erasures.c.id == erasure_id) & _IS_UNSEALED
        await connection.execute(t.erasures.update().where(own).values(callbacks=list(sealed[erasure_id])))


@dataclass(frozen=True, slots=True)
class DeliveryWithSecret:
    """A delivery, and what its callback signs deliveries with."""

    delivery: Delivery
    secret: str | None


async def delivery(connection: AsyncConnection, delivery_id: UUID) -> DeliveryWithSecret:
    statement = (
        sa.select(t.deliveries, t.erasures.c.callbacks)
        .join(t.erasures, t.erasures.c.id == t.deliveries.c.erasure_id)
        .where(t.deliveries.c.id == delivery_id)
    )
    row = (await connection.execute(statement)).one()
    values = {name: value for name, value in row._mapping.items() if name != "callbacks"}
    return DeliveryWithSecret(Delivery(**values), row.callbacks[row.callback]["secret"])
