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


async def sweep_uploads(
    database: Database, blobs: BlobStore, older_than: timedelta, client_id: UUID | None = None
) -> int:
    """Delete what clients, or one of them, uploaded so long ago and no row names; returns how many."""
    num_swept, after = 0, None
    while True:
        async with database.write() as connection:
            before = await database.now(connection) - older_than
            found = await outbox.orphans(connection, before, SWEPT_AT_ONCE, client_id=client_id, after=after)
            for federation_id in sorted({owner for owner, _ in found}):
                own = [digest for owner, digest in found if owner == federation_id]
                unused = await references.release(connection, federation_id, own)
                await blobs.delete(federation_id, *unused)
                num_swept += len(unused)
        if len(found) < SWEPT_AT_ONCE:
            return num_swept
        after = found[-1]
