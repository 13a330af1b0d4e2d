"""The sealed history of a run's updates: kept after each round, thinned, unsealed for kernels; and retention, which
drops the plain updates afterwards."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from coordinator.blobs.port import BlobStore
from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import Blob, Job
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealing_keys import SealingKeys
from coordinator.store import kept, outbox
from coordinator.store.database import Database
from coordinator.store.kept import Copy, Wanted
from services.core.errors import InvariantBroken, Rejected
from services.history.coverage import cover
from services.history.sealing import SALT_BYTES
from services.history.spec import UpdateHistory
from services.history.store import Kept, keep, restore
from services.tensors.streams import FileWriter, StoredFile

log = structlog.get_logger()
SEALED_AT_ONCE: Final = 16
_REFUSED: Final = Kept("", 0, 0.0, 0.0)
"""Stands for an update that cannot be kept."""


class Keeping:
    def __init__(self, database: Database, blobs: BlobStore, keys: SealingKeys, scratch: Scratch) -> None:
        self._database, self._blobs, self._keys, self._scratch = database, blobs, keys, scratch

    async def run(self, job: Job, token: str) -> None:
        """A chore of the outbox: keep what the policy wants, drop what it does not, then the plain updates. It looks at
        all rounds since the last one that was done, so that nothing is lost with a chore that was cut short."""
        if job.cohort_id is None:
            raise InvariantBroken("a history without a cohort")
        async with self._database.read() as connection:
            (place,) = await kept.places(connection, [job.cohort_id])
            if place.policy is None:
                raise InvariantBroken("a history without a policy")
            found = await kept.wanted(connection, job.cohort_id, place.policy)
        for first in range(0, len(found), SEALED_AT_ONCE):
            if not await self._seal(job.federation_id, found[first : first + SEALED_AT_ONCE], place.policy):
                return  # another process is at the same; when the lease runs out it is seen how that ended
        if place.policy.window is not None or place.policy.budget_bytes is not None:
            await self.thin([job.cohort_id])
        await self.collect(job, token)

    async def collect(self, job: Job, token: str) -> None:
        """Drop updates that retention no longer keeps: bytes first, then their records, in one transaction, so that a
        record without bytes can only be left by a crash, and then this job runs again. While a method works on the
        cohort it may read any of them; the chore of a later round drops them."""
        if job.cohort_id is None:
            raise InvariantBroken("retention without a cohort")
        async with self._database.write() as connection:
            (place,) = await kept.places(connection, [job.cohort_id])
            up_to_round = job.params["up_to_round"]
            if job.kind == "collect-updates":
                others = await outbox.take_collections(connection, job.cohort_id, job.epoch)
                up_to_round = max(up_to_round, *others, 0)
            if not place.is_unlearning:
                found = await outbox.updates_to_collect(connection, job.cohort_id, job.epoch, up_to_round)
                unused = await outbox.forget_updates(connection, job.federation_id, found) if found else []
                await self._blobs.delete(job.federation_id, *unused)
            await outbox.finish_chore(connection, job.id, token)

    async def thin(self, cohort_ids: Collection[UUID]) -> None:
        """Drop what is too much, and what is in no model any more; nothing while a request cuts the cohort."""
        async with self._database.read() as connection:
            places = await kept.places(connection, cohort_ids)
        for place in places:
            async with self._database.write() as connection:
                if place.policy is None or await kept.is_being_erased(connection, place.cohort_id):
                    continue
                superfluous = cover(await kept.bytes_by_round(connection, place.cohort_id), place.policy).dropped
                dropped = await kept.drop(connection, place.cohort_id, superfluous)
                await self._blobs.delete(place.federation_id, *dropped)

    async def tidy(self) -> None:
        """What erasures left behind: copies of what is in no model any more, keys without an owner."""
        async with self._database.read() as connection:
            cohort_ids = await kept.cohorts_with_copies(connection)
        await self.thin(cohort_ids)
        owners = await asyncio.to_thread(self._keys.owners)
        async with self._database.read() as connection:
            gone = await kept.erased_without_copies(connection, owners) if owners else []
        await self.shred(gone)

    async def keys_of(self, client_ids: Collection[UUID]) -> list[bytes]:
        """Of those among the clients that have one."""
        found = [await asyncio.to_thread(self._keys.find, client_id) for client_id in client_ids]
        return [key for key in found if key is not None]

    async def shred(self, client_ids: Collection[UUID]) -> None:
        """Destroy the clients' keys, and what killed processes left unsealed."""
        for client_id in client_ids:
            await asyncio.to_thread(self._keys.destroy, client_id)
        await self.sweep()

    async def sweep(self) -> None:
        """Remove what killed processes left unsealed."""
        await asyncio.to_thread(self._scratch.sweep)

    @asynccontextmanager
    async def local(self, owner: UUID, digests: Sequence[str]) -> AsyncIterator[dict[str, Path]]:
        """Blobs as files to read, like those of the store; an update that is only in the history is unsealed."""
        async with AsyncExitStack() as stack:
            try:
                files = await stack.enter_async_context(self._blobs.local(owner, digests))
            except Rejected as missing:
                if missing.code != "not-found":
                    raise
                files = await self._unsealed(owner, digests, stack)
            yield files

    async def _unsealed(self, owner: UUID, digests: Sequence[str], stack: AsyncExitStack) -> dict[str, Path]:
        missing = [digest for digest in digests if await self._blobs.stat(owner, digest) is None]
        async with self._database.read() as connection:
            copies = await kept.copies(connection, owner, missing)
        names = [copies[digest].digest if digest in copies else digest for digest in digests]
        files = await stack.enter_async_context(self._blobs.local(owner, names))
        directory = stack.enter_context(self._scratch.directory())
        for source, copy in copies.items():
            out = directory / source.removeprefix("sha256:")
            await asyncio.to_thread(self._restore, copy, files[copy.digest], out)
            files[source] = out
        return files

    def _restore(self, copy: Copy, stored: Path, out: Path) -> None:
        key = self._keys.find(copy.client_id)
        if key is None:
            raise Rejected("not-found", f"the key of client {copy.client_name}'s kept updates was destroyed")
        with FileWriter(out) as writer:
            restore(stored, writer, copy.policy, key, copy.context, copy.digest)

    async def _seal(self, federation_id: UUID, some: Sequence[Wanted], policy: UpdateHistory) -> bool:
        """Named in the database first, then stored, then confirmed: whatever a crash leaves is found again. False:
        another process is at some of it, too."""
        with tempfile.TemporaryDirectory(prefix="lethe-sealed-") as directory:
            paths = {one: Path(directory) / str(number) for number, one in enumerate(some)}
            sealed = [(one, await self._keep(federation_id, one, paths[one], policy)) for one in some]
            async with self._database.write() as connection:
                now = await self._database.now(connection)
                announced, left = await kept.announce(connection, sealed, policy, now)
            crashpoint("history.after-announcement")
            await self._blobs.delete(federation_id, *left)
            stored = [
                await self._adopt(federation_id, paths[one], now) for one, copy in announced if copy is not _REFUSED
            ]
        crashpoint("history.after-adoption")
        async with self._database.write() as connection:
            unwanted = [blob for blob in stored if not await kept.confirm(connection, blob)]
            is_all = not await kept.are_being_sealed(connection, [one.update_id for one in some])
        await self._blobs.delete(federation_id, *(blob.digest for blob in unwanted))
        return is_all

    async def _adopt(self, federation_id: UUID, path: Path, now: datetime) -> Blob:
        digest, inspection, num_bytes = await self._blobs.adopt(federation_id, path)
        layout = inspection.layout
        return Blob(federation_id, digest, num_bytes, layout.digest(), layout.updatable().digest(), True, now)

    async def _keep(self, federation_id: UUID, one: Wanted, out: Path, policy: UpdateHistory) -> Kept:
        try:
            async with self._blobs.local(federation_id, [one.source]) as files:
                key = await asyncio.to_thread(self._keys.find_or_make, one.client_id)
                update, salt = StoredFile(files[one.source]), os.urandom(SALT_BYTES)
                return await asyncio.to_thread(keep, update, out, policy, key, salt, one.context)
        except Rejected as refused:
            log.warning("history.refused", update=str(one.update_id), round=one.round, error=str(refused))
            return _REFUSED
