"""Uploads that nobody needs."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.runtime.storage import Storage
from coordinator.runtime.transactions import transact
from coordinator.store import blobs
from coordinator.store.database import Database

SWEPT_AT_ONCE: Final = 200


async def sweep_uploads(
    database: Database, storage: Storage, older_than: timedelta, client_id: UUID | None = None
) -> int:
    """Give up what clients, or one of them, uploaded so long ago and never submitted, and what was begun and never
    finished; returns how many."""

    async def sweep(connection: AsyncConnection) -> int:
        before = await database.now(connection) - older_than
        found = await blobs.held_abandoned(connection, before, client_id=client_id, most=SWEPT_AT_ONCE)
        await blobs.drop(connection, found)
        return len(found)

    num_swept = 0
    while True:
        num_found = await transact(database, sweep)
        num_swept += num_found
        if not num_found:
            await storage.delete_dropped()
            return num_swept
