"""What lies in the blob store beside what the database announces.

Every blob is announced by a row before its first byte. So bytes that no row announces, however new, are left over from
a crash, a restored backup or a hand: nobody can need them, and an erasure must not overlook them. A database that is
stopped at once leaves some, too: announcements of uploads do not wait for its disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import structlog

from coordinator.blobs.port import BlobStore, StoredBytes
from coordinator.runtime.supervision import WorkHealth
from coordinator.store import accounts, blobs
from coordinator.store.database import Database
from coordinator.store.faults import fault_of

log = structlog.get_logger()
LOOKED_AT_ONCE: Final = 500
LOOK_EVERY_S: Final = 3600.0
NOTICED_AFTER_S: Final = 1.0
"""How soon after a connection was lost, or could not be had, to look."""
RESTS: Final = 20
"""The pause between two looks, in times of what the first took: connections to a large store's database may be lost
more often than it can be looked through."""


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


async def remove_orphans(database: Database, store: BlobStore, *, also_of_strangers: bool = False) -> int:
    """Returns how many there were. What belongs to a federation that the database does not have stays, unless somebody
    has asked for it: a coordinator that was given the wrong database must not empty the blob store of another."""
    num_removed, own = 0, dict[UUID, bool]()
    async for one in orphans(database, store):
        if one.owner not in own:
            async with database.read() as connection:
                own[one.owner] = await accounts.has_federation(connection, one.owner)
        if not own[one.owner] and not also_of_strangers:
            continue
        await store.delete(one.owner, one.name)
        log.warning("orphan.removed", federation=str(one.owner), bytes=one.num_bytes)
        num_removed += 1
    return num_removed


class OrphanWatch:
    """Removes orphans by itself: when the process starts, after the database was away, and now and then."""

    def __init__(self, database: Database, store: BlobStore) -> None:
        self._database, self._store = database, store

    async def forever(self, health: WorkHealth) -> None:
        while True:
            num_lost, began_at = self._database.num_lost, time.monotonic()
            if await self._look(health):
                rest_s = RESTS * (time.monotonic() - began_at)
                await self._wait(num_lost, began_at, rest_s)
            else:
                await asyncio.sleep(NOTICED_AFTER_S)

    async def _look(self, health: WorkHealth) -> bool:
        """False: the database or the store cannot serve now."""
        try:
            await remove_orphans(self._database, self._store)
        except Exception as error:
            if not isinstance(error, OSError) and fault_of(error) is None:
                raise
            log.warning("orphans.wait", error=str(error)[:200])
            health.waits("the database or the blob store cannot serve")
            return False
        health.ok()
        return True

    async def _wait(self, num_lost: int, began_at: float, rest_s: float) -> None:
        """A loss while it looked counts: what had been looked up by then may be forgotten."""
        pause_s = rest_s
        while True:
            await asyncio.sleep(pause_s)
            if self._database.num_lost != num_lost or time.monotonic() - began_at >= LOOK_EVERY_S:
                return
            pause_s = NOTICED_AFTER_S


async def _unannounced(database: Database, lot: list[StoredBytes]) -> list[StoredBytes]:
    found: list[StoredBytes] = []
    async with database.read() as connection:
        for owner in {one.owner for one in lot}:
            own: dict[str, StoredBytes] = {one.name: one for one in lot if one.owner == owner}
            names = await blobs.unannounced(connection, owner, own)
            found += [own[name] for name in sorted(names)]
    return found
