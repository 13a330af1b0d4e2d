"""What lies in the blob store beside what the database announces.

Every blob is announced by a row before its first byte. So bytes that no row announces, however new, are left over from
a crash, a restored backup or a hand: nobody can need them, and an erasure must not overlook them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import structlog

from coordinator.blobs.port import BlobStore, StoredBytes
from coordinator.store import blobs
from coordinator.store.database import Database

log = structlog.get_logger()
LOOKED_AT_ONCE: Final = 500


async def orphans(database: Database, store: BlobStore) -> AsyncIterator[StoredBytes]:
    """Stored bytes without a row. They are listed first and looked up then, so that none of an upload is among them."""
    lot: list[StoredBytes] = []
    async for one in store.list():
        lot.append(one)
        if len(lot) == LOOKED_AT_ONCE:
            for found in await _unannounced(database, lot):
                yield found
            lot = []
    for found in await _unannounced(database, lot):
        yield found


async def remove_orphans(database: Database, store: BlobStore) -> int:
    """Returns how many there were."""
    num_removed = 0
    async for one in orphans(database, store):
        await store.delete(one.owner, one.name)
        log.warning("orphan.removed", federation=str(one.owner), bytes=one.num_bytes)
        num_removed += 1
    return num_removed


async def _unannounced(database: Database, lot: list[StoredBytes]) -> list[StoredBytes]:
    found: list[StoredBytes] = []
    async with database.read() as connection:
        for owner in {one.owner for one in lot}:
            own: dict[str, StoredBytes] = {one.name: one for one in lot if one.owner == owner}
            names = await blobs.unannounced(connection, owner, own)
            found += [own[name] for name in sorted(names)]
    return found
