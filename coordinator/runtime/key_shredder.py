"""Destroying keys after an erasure: what is clean and was sealed under one of them is wrapped again under a new one
first. Then every copy of the rest is noise, in backups and write-ahead logs as well.

What was wrapped again is also noted beside the keys: a database that is restored from before the erasure names the
destroyed keys, and finds there what its clean blobs are sealed under now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from coordinator.keys.port import KeyName, client_key, epoch_of, is_of_client, is_of_cohort, kept_key, newest
from coordinator.runtime.blob_sealer import BlobSealer
from coordinator.store import blobs
from coordinator.store.database import Database
from coordinator.store.inventory import ErasureRecord
from services.core import digests
from services.core.errors import InvariantBroken, Rejected

log = structlog.get_logger()
WRAPPED_AT_ONCE: Final = 200
LOOK_EVERY_S: Final = 0.2


class KeyShredder:
    def __init__(self, database: Database, sealer: BlobSealer) -> None:
        self._database, self._sealer = database, sealer

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """One purge at a time wherever these keys are used: what one of them wraps again another may have to shred."""
        while True:
            if (turn := self._sealer.keys.take_turn()) is not None:  # not from a thread: a turn must not get lost
                break
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            yield
        finally:
            turn.close()

    async def doomed(self, found: ErasureRecord, epochs: Mapping[UUID, int]) -> set[KeyName]:
        """The keys that go: those of who leaves for good; and all keys of cohorts up to the last epoch in which
        something was derived from the leavers (`epochs`)."""
        names = await asyncio.to_thread(self._sealer.keys.names)
        leaving = {s.client_id for s in found.subjects} if found.erasure.scope == "client" else set()
        gone = {client_key(client_id) for client_id in leaving}  # also if there is none: none is made any more
        gone |= {name for name in names if any(is_of_client(name, client_id) for client_id in leaving)}
        for cohort_id, epoch in epochs.items():
            kept = await self._kept_key(cohort_id, found.erasure.id)
            gone |= {name for name in names if is_of_cohort(name, cohort_id) and not _is_later(name, epoch)} - {kept}
        return gone

    def digests_of(self, names: Collection[KeyName]) -> list[str]:
        """What a certificate calls them."""
        keys = [self._sealer.keys.find(name) for name in names]
        return sorted(digests.of_bytes(key) for key in keys if key is not None)

    async def shred(self, found: ErasureRecord, doomed: set[KeyName], epochs: Mapping[UUID, int]) -> None:
        """Wrap again what stays, then destroy. May be repeated, and begun again by another process."""
        for cohort_id, epoch in sorted(epochs.items()):
            kept = await self._kept_key(cohort_id, found.erasure.id)
            await asyncio.to_thread(self._sealer.keys.find_or_make, kept)
            await self._keep_clean(cohort_id, kept, epoch)
        await asyncio.to_thread(self._sealer.keys.destroy, sorted(doomed))
        if left := doomed & await asyncio.to_thread(self._sealer.keys.names):
            raise InvariantBroken(f"the key {min(left)} is still there after it was destroyed")

    async def _kept_key(self, cohort_id: UUID, erasure_id: UUID) -> KeyName:
        """The same until it is destroyed."""
        return await asyncio.to_thread(newest, self._sealer.keys, partial(kept_key, cohort_id, erasure_id))

    async def _keep_clean(self, cohort_id: UUID, new: KeyName, epoch: int) -> None:
        """Whatever its rows name: those of a restored database name keys that were destroyed long ago."""
        names = await asyncio.to_thread(self._sealer.keys.names)
        spared = {name for name in names if is_of_cohort(name, cohort_id) and _is_later(name, epoch)} | {new}
        lost: set[UUID] = set()
        while True:
            async with self._database.read() as connection:
                some = await blobs.under_other_keys(connection, cohort_id, spared, WRAPPED_AT_ONCE + len(lost))
            some = [blob for blob in some if blob.id not in lost]
            if not some:
                return
            wrapped: dict[UUID, bytes] = {}
            for blob in some:
                try:
                    data_key = await self._sealer.data_key(blob)
                except Rejected as rejected:  # its key was lost before: nobody can read it, wherever it lies
                    log.error("blob.unreadable", blob=str(blob.id), error=rejected.detail)
                    lost.add(blob.id)
                else:
                    wrapped[blob.id] = await self._sealer.wrapped(blob, data_key, new)
            await asyncio.to_thread(self._sealer.keys.note, new, wrapped)
            async with self._database.write() as connection:
                for blob in some:
                    if blob.id in wrapped:
                        await blobs.wrap_again(connection, blob, wrapped[blob.id], new)


def _is_later(name: KeyName, epoch: int) -> bool:
    """Nothing of the leavers was ever sealed under the keys of later epochs."""
    own = epoch_of(name)
    return own is not None and own > epoch
