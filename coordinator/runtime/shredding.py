"""Destroying keys after an erasure: what is clean and was sealed under one of them is wrapped again under a new one
first. Then every copy of the rest is noise, in backups and write-ahead logs as well.

What was wrapped again is also noted beside the keys: a database that is restored from before the erasure names the
destroyed keys, and finds there what its clean blobs are sealed under now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import count
from typing import Final
from uuid import UUID

import structlog

from coordinator.keys.port import KeyName, client_key, cohort_key, is_of_client, is_of_cohort, kept_key
from coordinator.runtime.sealing import Sealing
from coordinator.store import blobs
from coordinator.store.database import Database
from coordinator.store.inventory import Dossier
from services.core import digests
from services.core.errors import InvariantBroken, Rejected

log = structlog.get_logger()
WRAPPED_AT_ONCE: Final = 200
LOOK_EVERY_S: Final = 0.2


class Shredding:
    def __init__(self, database: Database, sealing: Sealing) -> None:
        self._database, self._sealing = database, sealing

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """One purge at a time wherever these keys are used: what one of them wraps again another may have to shred."""
        while True:
            turn = await asyncio.to_thread(self._sealing.keys.take_turn)
            if turn is not None:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            yield
        finally:
            turn.close()

    async def doomed(self, found: Dossier, cohort_ids: Collection[UUID]) -> set[KeyName]:
        """The keys that go: those of who leaves for good, and of the cohorts all but those of epochs after the cut."""
        names = await asyncio.to_thread(self._sealing.keys.names)
        spared: set[KeyName] = set()
        for cohort_id in cohort_ids:
            spared |= {await asyncio.to_thread(self._kept_key, cohort_id, found.erasure.id)}
            spared |= _later_keys(found, cohort_id)
        leaving = {s.client_id for s in found.subjects} if found.erasure.scope == "client" else set()
        gone = {client_key(client_id) for client_id in leaving}  # also if there is none: none is made any more
        gone |= {name for name in names if any(is_of_client(name, client_id) for client_id in leaving)}
        return gone | ({name for name in names if any(is_of_cohort(name, one) for one in cohort_ids)} - spared)

    def digests_of(self, names: Collection[KeyName]) -> list[str]:
        """What a certificate calls them."""
        keys = [self._sealing.keys.find(name) for name in names]
        return sorted(digests.of_bytes(key) for key in keys if key is not None)

    async def shred(self, found: Dossier, doomed: set[KeyName], cohort_ids: Collection[UUID]) -> None:
        """Wrap again what stays, then destroy. May be repeated, and begun again by another process."""
        for cohort_id in sorted(cohort_ids):
            kept = await asyncio.to_thread(self._kept_key, cohort_id, found.erasure.id)
            await asyncio.to_thread(self._sealing.keys.find_or_make, kept)
            await self._keep_clean(cohort_id, kept, _later_keys(found, cohort_id))
        await asyncio.to_thread(self._sealing.keys.destroy, sorted(doomed))
        if left := doomed & await asyncio.to_thread(self._sealing.keys.names):
            raise InvariantBroken(f"the key {min(left)} is still there after it was destroyed")

    def _kept_key(self, cohort_id: UUID, erasure_id: UUID) -> KeyName:
        """The same until it is destroyed."""
        names = (kept_key(cohort_id, erasure_id, number) for number in count())
        return next(name for name in names if not self._sealing.keys.is_destroyed(name))

    async def _keep_clean(self, cohort_id: UUID, new: KeyName, later: set[KeyName]) -> None:
        """Whatever its rows name: those of a restored database name keys that were destroyed long ago."""
        lost: set[UUID] = set()
        while True:
            async with self._database.read() as connection:
                some = await blobs.under_other_keys(connection, cohort_id, later | {new}, WRAPPED_AT_ONCE + len(lost))
            some = [blob for blob in some if blob.id not in lost]
            if not some:
                return
            wrapped: dict[UUID, bytes] = {}
            for blob in some:
                try:
                    data_key = await self._sealing.data_key(blob)
                except Rejected as rejected:  # its key was lost before: nobody can read it, wherever it lies
                    log.error("blob.unreadable", blob=str(blob.id), error=rejected.detail)
                    lost.add(blob.id)
                else:
                    wrapped[blob.id] = await self._sealing.wrapped(blob, data_key, new)
            await asyncio.to_thread(self._sealing.keys.note, new, wrapped)
            async with self._database.write() as connection:
                for blob in some:
                    if blob.id in wrapped:
                        await blobs.wrap_again(connection, blob, wrapped[blob.id], new)


def _later_keys(found: Dossier, cohort_id: UUID) -> set[KeyName]:
    """Of the epochs after the cut: nothing of the leavers was ever sealed under them."""
    cuts = [line.epoch_before for line in found.lines if line.cohort_id == cohort_id]
    return {
        cohort_key(cohort_id, epoch) for cut in cuts for epoch in range(cut + 1, found.cohorts[cohort_id].epoch + 1)
    }
