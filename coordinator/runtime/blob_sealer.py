"""Under which keys a blob is sealed: everything that a kernel makes under the key of its cohort's epoch, what a client
sends under its own and that one together, what operators upload under their federation's.

A key that is destroyed takes with it every copy of what was sealed under it, wherever that lies. So keys are kept
apart from database and blobs, and none is made anew while anything is recorded that was sealed under one of its name.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from functools import partial
from uuid import UUID, uuid4

import structlog

from coordinator.blobs.port import StorageFull
from coordinator.engine.entities import Blob
from coordinator.keys.port import Destroyed, KeyStore, client_key, cohort_key, federation_key, newest
from coordinator.store import blobs
from coordinator.store.blobs import HeldTask
from coordinator.store.database import Database
from services.core.errors import InvariantBroken, Rejected
from services.sealing.envelope import combined, new_data_key, unwrap, wrap
from services.sealing.segments import Seal, Unreadable

log = structlog.get_logger()


class BlobSealer:
    def __init__(self, database: Database, keys: KeyStore) -> None:
        self._database, self.keys = database, keys

    async def of_task(self, federation_id: UUID, task: HeldTask, digest: str, num_bytes: int, now: datetime) -> Blob:
        """What a client is about to send for its task."""
        blank = operators_blob(federation_id, now, digest, num_bytes)
        return await self.sealed(
            replace(
                blank,
                origin="task",
                origin_id=task.id,
                client_id=task.client_id,
                cohort_id=task.cohort_id,
                epoch=task.epoch,
                client_key_name=client_key(task.client_id),
                key_name=await self.newest_key(task.cohort_id, task.epoch),
            )
        )

    async def of_operator(self, federation_id: UUID, digest: str, num_bytes: int, now: datetime) -> Blob:
        return await self.sealed(operators_blob(federation_id, now, digest, num_bytes))

    async def of_job(self, federation_id: UUID, job_id: UUID, cohort_id: UUID, epoch: int, now: datetime) -> Blob:
        """What a kernel is about to make."""
        blank = operators_blob(federation_id, now, None, 0)
        return await self.sealed(
            replace(
                blank,
                origin="job",
                origin_id=job_id,
                cohort_id=cohort_id,
                epoch=epoch,
                key_name=await self.newest_key(cohort_id, epoch),
            )
        )

    async def of_copy(
        self, federation_id: UUID, update_id: UUID, client_id: UUID, cohort_id: UUID, epoch: int, now: datetime
    ) -> Blob:
        """A lossy copy, which is sealed like the update that it is made of."""
        blank = operators_blob(federation_id, now, None, 0)
        return await self.sealed(
            replace(
                blank,
                origin="copy",
                origin_id=update_id,
                client_id=client_id,
                cohort_id=cohort_id,
                epoch=epoch,
                client_key_name=client_key(client_id),
                key_name=await self.newest_key(cohort_id, epoch),
            )
        )

    async def newest_key(self, cohort_id: UUID, epoch: int) -> str:
        """The newest key of an epoch of a cohort."""
        name = cohort_key(cohort_id, epoch)
        if self._found(name) is not None:
            return name
        return await asyncio.to_thread(newest, self.keys, partial(cohort_key, cohort_id, epoch))

    async def sealed(self, blob: Blob) -> Blob:
        """A new blob with a key for its bytes, wrapped under the keys that it names."""
        assert blob.key_name is not None
        outer = await self._outer(blob.key_name, blob.client_key_name, makes=True)
        return replace(blob, data_key=wrap(outer, new_data_key(), blob.id))

    async def seal_of(self, blob: Blob) -> Seal:
        """What opens and seals its bytes. Rejects `key-missing`."""
        return Seal(await self.data_key(blob), blob.id)

    async def data_key(self, blob: Blob) -> bytes:
        """The key of the blob's bytes. A row that was restored from before an erasure may name a key that this
        destroyed; what it kept is found under its new key."""
        if blob.data_key is None or blob.key_name is None:
            raise InvariantBroken(f"blob {blob.id} is not sealed")
        try:
            return await self._unwrapped(blob, blob.key_name, blob.data_key)
        except Rejected:
            again = await asyncio.to_thread(self.keys.noted, blob.id, blob.cohort_id) if blob.cohort_id else None
            if again is None or again[0] == blob.key_name:
                raise
            return await self._unwrapped(blob, *again)

    async def owners_key(self, name: str) -> bytes | None:
        """For what is written about its owner. None: it was destroyed, or cannot be had now."""
        try:
            return await self._key(name, makes=True)
        except (Rejected, StorageFull) as error:
            log.warning("key.not-had", key=name, error=str(error))
            return None

    async def wrapped(self, blob: Blob, data_key: bytes, key_name: str) -> bytes:
        """The key of its bytes, wrapped under another key in place of its cohort's."""
        return wrap(await self._outer(key_name, blob.client_key_name, makes=True), data_key, blob.id)

    async def _unwrapped(self, blob: Blob, key_name: str, wrapped: bytes) -> bytes:
        outer = await self._outer(key_name, blob.client_key_name, makes=False)
        try:
            return unwrap(outer, wrapped, blob.id)
        except Unreadable as error:
            raise _missing(key_name, "is another one than it was") from error

    async def _outer(self, key_name: str, client_key_name: str | None, *, makes: bool) -> bytes:
        key = await self._key(key_name, makes=makes)
        return key if client_key_name is None else combined(await self._key(client_key_name, makes=makes), key)

    def _found(self, name: str) -> bytes | None:
        try:
            return self.keys.find(name)
        except OSError as error:
            raise StorageFull(error.errno, f"the store of keys cannot be read: {error.strerror}") from error

    async def _key(self, name: str, *, makes: bool) -> bytes:
        if (key := self._found(name)) is not None:
            return key
        if not makes:
            raise _missing(name, "is not there")
        async with self._database.read() as connection:
            if await blobs.is_key_used(connection, name):
                raise _missing(name, "is not there")
        try:
            return await asyncio.to_thread(self.keys.find_or_make, name)
        except Destroyed:
            raise Rejected("key-missing", f"the key {name} was destroyed by an erasure", key=name) from None
        except OSError as error:
            raise StorageFull(error.errno, f"the store of keys takes no writes: {error.strerror}") from error


def operators_blob(federation_id: UUID, now: datetime, digest: str | None, num_bytes: int) -> Blob:
    """An operator's blob, not yet sealed; those of others differ from it in whose they are."""
    return Blob(
        id=uuid4(),
        federation_id=federation_id,
        origin="operator",
        origin_id=None,
        client_id=None,
        cohort_id=None,
        epoch=None,
        digest=digest,
        num_bytes=num_bytes,
        layout_digest=None,
        updatable_digest=None,
        finite=None,
        status="arriving",
        key_name=federation_key(federation_id),
        client_key_name=None,
        data_key=None,
        created_at=now,
    )


def _missing(name: str, how: str) -> Rejected:
    detail = f"the key {name} {how}: restore the keys from their backup (see docs/operations.md), then go on"
    return Rejected("key-missing", detail, key=name)
