"""Sealing what an earlier release left plain, while everything else goes on.

One blob after the other gets a sealed one beside it: announced, written, and put in its place by one transaction, after
which the plain bytes are deleted. Whoever is killed leaves what the next one finds; of several that are at the same
blob, one puts its own in place. Copies of updates that version 0.1 sealed with one key per client take the form that
they have today, and then those keys are destroyed.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

import structlog

from coordinator.blobs.port import StorageFull
from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import Blob
from coordinator.keys.port import client_key, federation_key, is_earlier
from coordinator.runtime.certificate_issuer import SEALED_LATE
from coordinator.runtime.kept_updates import key_before
from coordinator.runtime.orphans import remove_orphans
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealed_writer import SealedWriter
from coordinator.runtime.storage import Storage, name_of
from coordinator.runtime.supervision import WorkHealth
from coordinator.store import blobs, evidence, plain_blobs
from coordinator.store.blobs import HeldTask
from coordinator.store.database import Database, Unavailable
from coordinator.store.evidence import Incident
from coordinator.store.plain_blobs import KeptCopy, NotNow
from services.core.errors import Rejected
from services.history.version_0_1 import restore_sealed, unsealed_copy
from services.sealing.segments import Seal
from services.tensors.inspection import InspectingWriter, Inspection
from services.tensors.streams import Stored, StoredFile

log = structlog.get_logger()
AT_ONCE: Final = 50
LOOK_AGAIN_S: Final = 30.0
"""The pause after some could not be sealed: a purge was at work, the disk was full, or bytes are missing."""
LOOK_EVERY_S: Final = 3600.0
_BEGUN: Final = uuid5(NAMESPACE_OID, "lethe incident: plain blobs were found")
_DONE: Final = uuid5(NAMESPACE_OID, "lethe incident: plain blobs were sealed")
_READ_BYTES: Final = 1 << 20


class PlainBlobUpgrade:
    def __init__(self, database: Database, storage: Storage, scratch: Scratch, blob_path: Path) -> None:
        self._database, self._storage, self._scratch = database, storage, scratch
        self._parts = blob_path / "parts"

    async def begin(self) -> None:
        """Before anything else runs: every certificate from now on says that something lay plain here."""
        async with self._database.read() as connection:
            is_plain = await blobs.are_any_plain(connection)
        if is_plain:
            await self._tell(
                _BEGUN,
                "Bytes that an earlier version stored lie plain, and are sealed from now on; until all are, and in "
                "every backup that is made until then, they can be read without a key.",
            )

    async def forever(self, health: WorkHealth) -> None:
        while True:
            is_done = False
            try:
                is_done = await self.seal_all(health)
                health.ok()
            except Unavailable as error:
                log.warning("upgrade.waits", error=str(error)[:200])
                health.waits("the database cannot serve")
            await asyncio.sleep(LOOK_EVERY_S if is_done else LOOK_AGAIN_S)

    async def seal_all(self, health: WorkHealth | None = None) -> bool:
        """One look at every plain blob; whether none is left."""
        await asyncio.to_thread(shutil.rmtree, self._parts, ignore_errors=True)  # uploads that an upgrade cut short
        async with self._database.read() as connection:
            if not await blobs.are_any_plain(connection):
                return await self._finish()
        async with self._database.write() as connection:
            await plain_blobs.drop_unsubmitted(connection)
        await self._storage.delete_dropped()
        num_sealed, start = 0, uuid4()  # anywhere: so that several processes are seldom at the same blob
        for after, until in ((start, UUID(int=2**128 - 1)), (UUID(int=0), start)):
            while lot := await self._some(after, until):
                for blob in lot:
                    num_sealed += await self._try(blob)
                    if health is not None:
                        health.ok()
                after = lot[-1].id
                await self._storage.delete_dropped()
                log.info("upgrade.sealing", sealed=num_sealed)
        return await self._finish()

    async def _some(self, after: UUID, until: UUID) -> list[Blob]:
        async with self._database.read() as connection:
            return [blob for blob in await plain_blobs.some(connection, after, AT_ONCE) if blob.id <= until]

    async def _try(self, blob: Blob) -> bool:
        """One that cannot be sealed stays as it is, and holds up no other."""
        try:
            return await (self._turn_copy(blob) if blob.origin == "copy" else self._seal(blob))
        except NotNow:
            return False
        except (Rejected, OSError) as error:
            why = "the store is full" if isinstance(error, StorageFull) else str(error)
            log.error("upgrade.not-sealed", blob=str(blob.id), digest=blob.digest, error=why[:200])
            return False

    async def _seal(self, old: Blob) -> bool:
        async with self._database.write() as connection:
            if await plain_blobs.is_sealed(connection, old):
                return await plain_blobs.may_seal(connection, old.federation_id) and await plain_blobs.drop(
                    connection, old
                )
        new = await self._storage.sealer.sealed(await self._blank(old))
        seal = await self._storage.sealer.seal_of(new)
        with self._scratch.file() as path:
            async with self._storage.opened([old]) as files:
                digest, _ = await asyncio.to_thread(_write, path, seal, _pieces(files[old.id]))
            if digest != old.digest:
                raise Rejected("digest-mismatch", "its bytes are damaged; restore them from a backup")
            return await self._put_in_place(old, new, path)

    async def _blank(self, old: Blob) -> Blob:
        """What a plain one will be, not yet sealed: the same under another name, with the keys of its origin."""
        key_name, of_client = federation_key(old.federation_id), None
        if old.origin != "operator" and old.cohort_id is not None and old.epoch is not None:
            key_name = await self._storage.sealer.newest_key(old.cohort_id, old.epoch)
        if old.client_id is not None:
            of_client = client_key(old.client_id)
        return replace(old, id=uuid4(), status="arriving", key_name=key_name, client_key_name=of_client)

    async def _turn_copy(self, old: Blob) -> bool:
        """Without loss it is the update itself, which is kept as it is from now on; else a copy as they are today."""
        async with self._database.write() as connection:
            found = await plain_blobs.kept_copy(connection, old)
            update = None if found is None else await plain_blobs.update_of(connection, found)
            if found is None or update is not None:
                is_dropped = await plain_blobs.may_seal(connection, old.federation_id) and await plain_blobs.drop(
                    connection, old
                )
                if is_dropped and found is not None and update is not None:
                    await plain_blobs.turn_copy(connection, found, found.copy.source, update.num_bytes)
                return is_dropped
        key = await asyncio.to_thread(key_before, self._storage.sealer.keys, found.copy)
        async with self._storage.opened([old]) as files:
            stored = files[old.id]
            assert isinstance(stored, StoredFile)
            if found.is_lossless and await self._turn_to_update(old, found, stored.path, key):
                return True
            sealer, owner = self._storage.sealer, found.copy
            new = await sealer.of_copy(
                old.federation_id, found.update_id, owner.client_id, found.cohort_id, found.epoch, old.created_at
            )
            pieces = unsealed_copy(stored.path, owner.policy, key, owner.context, owner.digest)
            with self._scratch.file() as path:
                digest, num_bytes = await asyncio.to_thread(_write, path, await sealer.seal_of(new), pieces)
                return await self._put_in_place(old, replace(new, digest=digest, num_bytes=num_bytes), path, found)

    async def _turn_to_update(self, old: Blob, found: KeptCopy, stored: Path, key: bytes) -> bool:
        """False: it has lost something after all. Raises NotNow."""
        sealer, copy = self._storage.sealer, found.copy
        task = HeldTask(found.task_id, copy.client_id, found.cohort_id, found.epoch)
        new = await sealer.of_task(old.federation_id, task, copy.source, 0, old.created_at)
        seal = await sealer.seal_of(new)
        with self._scratch.file() as path:

            def write() -> tuple[str, Inspection]:
                with SealedWriter(path, seal) as out:
                    writer = InspectingWriter(out)
                    restore_sealed(stored, writer, copy.policy, key, copy.context, copy.digest)
                    digest, inspection, _ = writer.finish()
                    return digest, inspection

            digest, inspection = await asyncio.to_thread(write)
            if digest != copy.source:
                return False
            layout = inspection.layout
            known = replace(new, num_bytes=inspection.num_bytes, layout_digest=layout.digest())
            known = replace(known, updatable_digest=layout.updatable().digest(), finite=inspection.finite)
            if not await self._put_in_place(old, known, path, found):
                raise NotNow
            return True

    async def _put_in_place(self, old: Blob, new: Blob, path: Path, found: KeptCopy | None = None) -> bool:
        """Announce, store, replace. False: not now, or no more."""
        async with self._database.write() as connection:
            if not await plain_blobs.announce(connection, old, new):
                return False
        crashpoint("upgrade.after-announcement")
        await self._storage.blobs.adopt(new.federation_id, name_of(new), path)
        crashpoint("upgrade.after-adoption")
        try:
            async with self._database.write() as connection:
                await self._storage.sealer.seal_of(new)  # a purge may have destroyed its key meanwhile
                await plain_blobs.replace(connection, old, new)
                if found is not None:
                    await plain_blobs.turn_copy(connection, found, new.digest or "", new.num_bytes)
        except (NotNow, Rejected):
            await self._storage.give_up(new.federation_id, [new.id])
            return False
        crashpoint("upgrade.after-replacement")
        return True

    async def _finish(self) -> bool:
        """Once nothing is plain: what nobody announced is removed, keys of version 0.1 destroyed, and that told."""
        await self._storage.delete_dropped()
        async with self._database.read() as connection:
            if await blobs.are_any_plain(connection):
                return False
            told = await evidence.reported(connection, [_BEGUN, _DONE])
        keys = self._storage.sealer.keys
        if earlier := {name for name in await asyncio.to_thread(keys.names) if is_earlier(name)}:
            await asyncio.to_thread(keys.destroy, sorted(earlier))
        if told == {_BEGUN}:
            await remove_orphans(self._database, self._storage.blobs)
            crashpoint("upgrade.before-end")
            await self._tell(
                _DONE,
                "All that an earlier version stored is sealed. What lay plain until now can be read without a key in "
                "every backup that was made before, for as long as it is kept.",
            )
            log.info("upgrade.sealed")
        return True

    async def _tell(self, incident_id: UUID, explanation: str) -> None:
        async with self._database.write() as connection:
            incident = Incident(await self._database.now(connection), SEALED_LATE, explanation)
            await evidence.report_once(connection, incident_id, incident, "lethe")


def _pieces(stored: Stored) -> Iterator[bytes]:
    with closing(stored.open()) as readable:
        for start in range(0, readable.num_bytes, _READ_BYTES):
            piece = bytearray(min(_READ_BYTES, readable.num_bytes - start))
            readable.read_into(memoryview(piece), start)
            yield bytes(piece)


def _write(path: Path, seal: Seal, pieces: Iterable[bytes]) -> tuple[str, int]:
    """Seal them into the file; returns digest and number of the plain bytes."""
    hashed, num_bytes = hashlib.sha256(), 0
    with SealedWriter(path, seal) as out:
        for piece in pieces:
            hashed.update(piece)
            num_bytes += len(piece)
            out.write(piece)
    return f"sha256:{hashed.hexdigest()}", num_bytes
