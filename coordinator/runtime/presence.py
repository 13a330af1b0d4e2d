"""When clients were last heard of: kept in memory at each request, and written down for all of them now and then, so
that neither a claim nor a heartbeat costs a statement."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from coordinator.bus.port import Bus
from coordinator.runtime.supervision import WorkHealth
from coordinator.store import accounts
from coordinator.store.database import Database, Unavailable

log = structlog.get_logger()
ONLINE_S: Final = 60.0
"""A client counts as online for so long after it was heard of."""
WRITE_EVERY_S: Final = 20.0


class Presence:
    def __init__(self, database: Database, bus: Bus) -> None:
        self._database, self._bus = database, bus
        self._heard_at: dict[UUID, float] = {}
        """When each client was heard of, by the monotonic clock; only what is not yet written down."""

    async def hear(self, client_id: UUID) -> None:
        self._heard_at[client_id] = time.monotonic()
        await self._bus.mark_alive(str(client_id), ONLINE_S)

    async def forever(self, health: WorkHealth) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self.write()
                health.ok()
            except Unavailable as error:
                log.warning("presence.waits", error=str(error)[:200])

    async def write(self) -> None:
        """What was heard of since the last time."""
        heard_at = self._heard_at.copy()
        if not heard_at:
            return
        async with self._database.write(is_durable=False) as connection:
            now, clock = await self._database.now(connection), time.monotonic()
            seen = {client_id: now - timedelta(seconds=clock - at) for client_id, at in sorted(heard_at.items())}
            await accounts.note_seen(connection, seen)
        for client_id, at in heard_at.items():
            if self._heard_at.get(client_id) == at:
                del self._heard_at[client_id]
