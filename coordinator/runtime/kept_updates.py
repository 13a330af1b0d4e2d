"""The history of a run's updates: kept after each round beyond what retention keeps, thinned, and read by kernels. And
retention itself. A policy without loss keeps the updates as they were sent; any other keeps copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import structlog

from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import Blob, Job
from coordinator.keys.port import KeyStore, earlier_client_key
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealed_writer import SealedWriter
from coordinator.runtime.storage import SealedFile, Storage, name_of, not_found, twice_if_missing
from coordinator.store import blobs, kept_updates, outbox, retention
from coordinator.store.database import Database
from coordinator.store.kept_updates import Copy, UpdateToKeep
from services.core.errors import InvariantBroken, Rejected
from services.history.coverage import cover
from services.history.spec import UpdateHistory
from services.history.store import Kept, keep, restore
from services.history.version_0_1 import restore_sealed
from services.sealing.envelope import new_data_key
from services.sealing.segments import Seal
from services.tensors.streams import Stored, StoredFile

log = structlog.get_logger()
KEPT_AT_ONCE: Final = 16
_REFUSED: Final = Kept("", 0)
"""Stands for an update that cannot be kept."""


class KeptUpdates:
    def __init__(self, database: Database, storage: Storage, scratch: Scratch) -> None:
        self._database, self._storage, self._scratch = database, storage, scratch

    async def run(self, job: Job, token: str) -> None:
        """A chore of the outbox: keep what the policy wants, drop what it does not, then what retention drops. It looks
        at all rounds since the last one that was done, so that nothing is lost with a chore that was cut short."""
        if job.cohort_id is None:
            raise InvariantBroken("a history without a cohort")
        async with self._database.read() as connection:
            (place,) = await kept_updates.places(connection, [job.cohort_id])
            if place.policy is None:
                raise InvariantBroken("a history without a policy")
            found = await kept_updates.wanted(connection, job.cohort_id, place.policy)
        for first in range(0, len(found), KEPT_AT_ONCE):
            if not await self._keep_some(job.federation_id, found[first : first + KEPT_AT_ONCE], place.policy):
                return  # another process is at the same; when the lease runs out it is seen how that ended
        if place.policy.window is not None or place.policy.budget_bytes is not None:
            await self.thin([job.cohort_id])
        await self.collect(job, token)

    async def collect(self, job: Job, token: str) -> None:
        """Drop updates that retention no longer keeps. While a method works on the cohort it may read any of them; the
        chore of a later round drops them."""
        if job.cohort_id is None:
            raise InvariantBroken("retention without a cohort")
        async with self._database.write() as connection:
            await kept_updates.hold(connection, job.cohort_id)
            (place,) = await kept_updates.places(connection, [job.cohort_id])
            up_to_round = job.params["up_to_round"]
            if job.kind == "collect-updates":
                others = await retention.take_collections(connection, job.cohort_id, job.epoch)
                up_to_round = max(up_to_round, *others, 0)
            if not place.is_unlearning:
                found = await retention.updates_to_collect(connection, job.cohort_id, job.epoch, up_to_round)
                if found:
                    await retention.forget_updates(connection, job.federation_id, found)
            await outbox.finish_chore(connection, job.id, token)
        await self._storage.delete_dropped()

    async def thin(self, cohort_ids: Collection[UUID]) -> None:
        """Drop what is too much, and what is in no model any more; nothing while a request cuts the cohort."""
        async with self._database.read() as connection:
            places = await kept_updates.places(connection, cohort_ids)
        for place in places:
            async with self._database.write() as connection:
                await kept_updates.hold(connection, place.cohort_id)
                if place.policy is None or await kept_updates.is_being_erased(connection, place.cohort_id):
                    continue
                superfluous = cover(
                    await kept_updates.bytes_by_round(connection, place.cohort_id), place.policy
                ).dropped
                await kept_updates.drop(connection, place.cohort_id, superfluous)
        await self._storage.delete_dropped()

    async def tidy(self) -> None:
        """What erasures left behind: copies of what is in no model any more."""
        async with self._database.read() as connection:
            cohort_ids = await kept_updates.cohorts_with_copies(connection)
        await self.thin(cohort_ids)

    async def sweep(self) -> None:
        """Remove what killed processes left in their scratch directories."""
        await asyncio.to_thread(self._scratch.sweep)

    @asynccontextmanager
    async def local(self, owner: UUID, digests: Sequence[str]) -> AsyncIterator[dict[str, Stored]]:
        """Blobs for a kernel to read, like those of the storage; an update of which there is only a copy is made again
        from it, sealed under a key that nobody keeps."""
        async with AsyncExitStack() as stack:
            yield await twice_if_missing(lambda: self._readable(owner, digests, stack))

    async def _readable(self, owner: UUID, digests: Sequence[str], stack: AsyncExitStack) -> dict[str, Stored]:
        found = await self._storage.find(owner, digests)
        missing = [digest for digest in digests if digest not in found]
        files = await stack.enter_async_context(self._storage.opened(list(found.values())))
        readable = {digest: files[blob.id] for digest, blob in found.items()}
        return readable | await self._restored(owner, missing, stack) if missing else readable

    async def _restored(self, owner: UUID, missing: Sequence[str], stack: AsyncExitStack) -> dict[str, Stored]:
        async with self._database.read() as connection:
            copies = await kept_updates.copies(connection, owner, missing)
        if lost := [digest for digest in missing if digest not in copies]:
            raise not_found(lost[0])
        stored = await stack.enter_async_context(self._storage.local(owner, [copy.digest for copy in copies.values()]))
        directory = stack.enter_context(self._scratch.directory())
        return {
            source: await asyncio.to_thread(_restored, copy, stored[copy.digest], directory, self._storage.sealer.keys)
            for source, copy in copies.items()
        }

    async def _keep_some(self, federation_id: UUID, some: Sequence[UpdateToKeep], policy: UpdateHistory) -> bool:
        """Announced in the database first, then stored, then confirmed: whatever a crash leaves is found again. False:
        another process is at some of it, too."""
        if policy.dtype == "fp32":
            await self._keep_as_they_are(federation_id, some, policy)
            return True
        async with self._database.read() as connection:
            now = await self._database.now(connection)
        with self._scratch.directory() as directory:
            made = {one: await self._copy(federation_id, one, directory / uuid4().hex, policy, now) for one in some}
            async with self._database.write() as connection:
                announced = await kept_updates.announce(connection, [(one, made[one][0]) for one in some], policy, now)
                copies = [(blob, path) for one, _ in announced for _, blob, path in [made[one]] if blob is not None]
                await blobs.announce(connection, [blob for blob, _ in copies])
            crashpoint("history.after-announcement")
            for blob, path in copies:
                await self._storage.blobs.adopt(federation_id, name_of(blob), path)
        crashpoint("history.after-adoption")
        async with self._database.write() as connection:
            unwanted = [blob.id for blob, _ in copies if not await kept_updates.confirm(connection, blob)]
            await blobs.drop(connection, await kept_updates.copies_of(connection, [one.update_id for one in some]))
            is_all = not await kept_updates.are_being_sealed(connection, [one.update_id for one in some])
        await self._storage.give_up(federation_id, unwanted)
        return is_all

    async def _keep_as_they_are(self, federation_id: UUID, some: Sequence[UpdateToKeep], policy: UpdateHistory) -> None:
        found = await self._storage.find(federation_id, [one.source for one in some])
        as_they_are = [(one, Kept(one.source, found[one.source].num_bytes)) for one in some if one.source in found]
        async with self._database.write() as connection:
            await kept_updates.announce(connection, as_they_are, policy, await self._database.now(connection))

    async def _copy(
        self, federation_id: UUID, one: UpdateToKeep, path: Path, policy: UpdateHistory, now: datetime
    ) -> tuple[Kept, Blob | None, Path]:
        try:
            async with self._storage.local(federation_id, [one.source]) as files:
                blob = await self._storage.sealer.of_copy(
                    federation_id, one.update_id, one.client_id, one.cohort_id, one.epoch, now
                )
                seal = await self._storage.sealer.seal_of(blob)
                copy = await asyncio.to_thread(_kept, files[one.source], path, seal, policy)
                return copy, replace(blob, digest=copy.digest, num_bytes=copy.num_bytes), path
        except Rejected as refused:
            log.warning("history.refused", update=str(one.update_id), round=one.round, error=str(refused))
            return _REFUSED, None, path


def _kept(update: Stored, path: Path, seal: Seal, policy: UpdateHistory) -> Kept:
    with SealedWriter(path, seal) as out:
        return keep(update, out, policy)


def _restored(copy: Copy, stored: Stored, directory: Path, keys: KeyStore) -> Stored:
    object_id = uuid4()
    path, seal = directory / object_id.hex, Seal(new_data_key(), object_id)
    with SealedWriter(path, seal) as out:
        if isinstance(stored, StoredFile):
            restore_sealed(stored.path, out, copy.policy, key_before(keys, copy), copy.context, copy.digest)
        else:
            restore(stored, out, copy.policy)
    return SealedFile(path, seal)


def key_before(keys: KeyStore, copy: Copy) -> bytes:
    """What version 0.1 sealed the copy with."""
    key = keys.find(earlier_client_key(copy.client_id))
    if key is None:
        raise not_found(copy.digest)
    return key
