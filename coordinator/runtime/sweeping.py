"""Uploads that nobody needs: records and bytes go in one transaction, so that nobody can record or name them in
between."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from coordinator.blobs.port import BlobStore
from coordinator.store import outbox, references
from coordinator.store.database import Database

SWEPT_AT_ONCE: Final = 100


async def sweep_uploads(database: Database, blobs: BlobStore, older_than: timedelta) -> int:
    """Delete what clients uploaded so long ago and no row names; returns how many."""
    num_swept = 0
    while True:
        async with database.write() as connection:
            before = await database.now(connection) - older_than
            found = await outbox.orphans(connection, before, SWEPT_AT_ONCE)
            swept = 0
            for federation_id in sorted({owner for owner, _ in found}):
                own = [digest for owner, digest in found if owner == federation_id]
                unused = await references.release(connection, federation_id, own)
                await blobs.delete(federation_id, *unused)
                swept += len(unused)
        num_swept += swept
        if not swept or len(found) < SWEPT_AT_ONCE:
            return num_swept


async def drop_uploads_of(
    database: Database, blobs: BlobStore, federation_id: UUID, client_id: UUID, sender: str
) -> int:
    """Delete what a client uploaded, in whole or in part, and no row names; returns how many whole ones."""
    await blobs.drop_parts(federation_id, sender)
    num_dropped = 0
    while True:
        async with database.write() as connection:
            found = await outbox.uploads_of(connection, client_id, SWEPT_AT_ONCE)
            unused = await references.release(connection, federation_id, found)
            await blobs.delete(federation_id, *unused)
        num_dropped += len(unused)
        if not unused or len(found) < SWEPT_AT_ONCE:
            return num_dropped
