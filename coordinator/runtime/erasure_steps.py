"""The steps of an erasure that reach outside the database: the tombstone before the fence, the purge, the certificate.

Each is a job of the outbox: it may be carried out twice, by two processes, and ends the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from coordinator.bus.port import CREDENTIALS_DROPPED, Bus
from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import Job
from coordinator.engine.messages import CompleteErasure, FenceErasure, HoldErasure
from coordinator.engine.react import EVIDENCE
from coordinator.keys.port import KeyName
from coordinator.runtime.certificate_issuer import CertificateIssuer, leavers
from coordinator.runtime.evidence import TROUBLE, described
from coordinator.runtime.filing import tombstone_of
from coordinator.runtime.kept_updates import KeptUpdates
from coordinator.runtime.key_shredder import KeyShredder
from coordinator.runtime.orphans import remove_orphans
from coordinator.runtime.shell import Shell
from coordinator.runtime.signing import SigningKeys
from coordinator.runtime.storage import Storage
from coordinator.store import accounts, blobs, erasure_steps, inventory, plain_blobs, taint, worker_caches
from coordinator.store import artefacts as artefact_rows
from coordinator.store.database import Database, Unavailable
from coordinator.store.inventory import ErasureRecord, FoundArtefact
from coordinator.store.scrubbing.purge import requests_left_unscrubbed, scrub
from coordinator.tombstones.port import TombstoneLog
from coordinator.tombstones.taint_lists import TAINT, TaintLists
from services.audit.certificate import CertificateRefused
from services.audit.keys import KeyUnreadable
from services.core.errors import InvariantBroken
from services.wire.v1.erasure import LEAVER_READS_DAYS

log = structlog.get_logger()
LIST_ATTEMPTS: Final = 20
"""So often a fence waits for models that are published while it notes the others; then it falls, and the purge notes
them."""


class ErasureSteps:
    def __init__(
        self,
        database: Database,
        shell: Shell,
        storage: Storage,
        bus: Bus,
        tombstones: TombstoneLog,
        keys: SigningKeys,
        kept_updates: KeptUpdates,
        *,
        scrubs: bool = True,
    ) -> None:
        """`scrubs`: whether a purge takes out what rows say of a client. An experiment's figures are its result."""
        self._database, self._shell, self._storage, self._bus = database, shell, storage, bus
        self._tombstones, self._kept_updates, self._scrubs = tombstones, kept_updates, scrubs
        self.certificates = CertificateIssuer(database, storage, keys)
        self._shredder = KeyShredder(database, storage.sealer)
        self._taint_lists = TaintLists(keys.directory / TAINT)

    async def run(self, job: Job) -> None:
        """Carry a step out. One that breaks is tried again by whoever runs jobs; until then the request says why."""
        try:
            await (self.fence(job) if job.kind == "fence" else self.purge(job))
        except Exception as error:
            if isinstance(error, TROUBLE):
                self._bus.wake([EVIDENCE])
            if not isinstance(error, Unavailable):
                await self._say(job, error)
            raise

    async def _say(self, job: Job, error: Exception) -> None:
        erasure_id = UUID(job.params["erasure_id"])
        what = described(error) if isinstance(error, TROUBLE) else type(error).__name__
        reason = f"its {job.kind} failed: {what}; it is tried again by itself, at the latest every five minutes"
        try:
            async with self._database.read() as connection:
                version = await erasure_steps.version(connection, erasure_id)
            if version is not None:
                await self._shell.handle(HoldErasure(erasure_id, None, version, reason))
        except Exception as other:
            log.error("erasure.untold", erasure=str(erasure_id), exc_info=other)

    async def fence(self, job: Job) -> None:
        """Write the tombstone to the log outside the database, then fence."""
        erasure_id = UUID(job.params["erasure_id"])
        async with self._database.read() as connection:
            found = await inventory.erasure_record(connection, erasure_id)
            touched = await erasure_steps.cohorts_with(connection, [s.client_id for s in found.subjects])
            now = await self._database.now(connection)
        cohorts = [(run_id, cohort_id, epoch + 1) for run_id, cohort_id, epoch in touched]
        entry = tombstone_of(found.erasure, found.subjects, cohorts, now)
        if found.erasure.awaits_fence:
            await asyncio.to_thread(self._tombstones.append, entry)
        crashpoint("erasure.after-tombstone")
        num_bytes = await self._fence(found, job)
        await self._forget_tokens(leavers(found))
        async with self._database.write() as connection:
            await worker_caches.order_drops(connection, erasure_id)
            if num_bytes:
                await taint.note(connection, erasure_id, num_bytes)
        crashpoint("erasure.after-fence")
        self._bus.wake([EVIDENCE])  # who notes how far the database has come with the log

    async def _fence(self, found: ErasureRecord, job: Job) -> int:
        """Note what the fence takes out of use, then let it fall; again if a model was published meanwhile. Returns how
        long the list is; 0: nothing is fenced any more, and nothing was noted."""
        erasure_id, num_attempts = found.erasure.id, 0
        if not found.erasure.awaits_fence or found.erasure.duplicate_of is not None:
            await self._shell.handle(FenceErasure(erasure_id, job.id))
            return 0
        while True:
            async with self._database.read() as connection:
                leaving = {s.client_id for s in found.subjects}
                models, updates = await erasure_steps.taken_out_of_use(connection, leaving)
            num_bytes = await self._list_taint(found, models, updates)
            crashpoint("erasure.after-list")
            num_attempts += 1
            listed = frozenset(models) if num_attempts < LIST_ATTEMPTS else None
            erasure = await self._shell.handle(FenceErasure(erasure_id, job.id, listed))
            if not erasure.awaits_fence or erasure.duplicate_of is not None:
                return num_bytes

    async def _list_taint(self, found: ErasureRecord, models: set[str], updates: set[str]) -> int:
        return await asyncio.to_thread(
            self._taint_lists.add, found.erasure.id, found.erasure.federation_id, models, updates
        )

    async def _forget_tokens(self, client_ids: list[UUID]) -> None:
        """Nobody remembers them as they were before the fence."""
        async with self._database.read() as connection:
            dropped = await accounts.credentials_of(connection, client_ids)
        if dropped:
            self._bus.publish(CREDENTIALS_DROPPED, ",".join(map(str, dropped)))

    async def purge(self, job: Job) -> None:
        async with self._shredder.alone():
            await self._purge(job)

    async def _purge(self, job: Job) -> None:
        """Delete what is derived from the leavers, destroy their keys, look for what is left, sign, complete."""
        erasure_id = UUID(job.params["erasure_id"])
        async with self._database.read() as connection:
            found = await inventory.erasure_record(connection, erasure_id)
            planned = await inventory.inventory(connection, found, None)
            epochs = await inventory.newest_epochs(connection, found, planned)
        num_bytes = await self._list_taint(found, *_digests_of(planned))
        doomed = await self._shredder.doomed(found, epochs)
        keys = [FoundArtefact("sealing-key", digest) for digest in self._shredder.digests_of(doomed)]
        async with self._database.write() as connection:
            found = await inventory.erasure_record(connection, erasure_id)
            await plain_blobs.hold_off(connection, found.erasure.federation_id)
            if not _may_purge(found, job):
                return
            now = await self._database.now(connection)
            ends_at = now + timedelta(days=LEAVER_READS_DAYS)
            artefacts = [*await inventory.inventory(connection, found, ends_at), *keys]
            if self._scrubs:
                artefacts += await scrub(connection, found, artefacts)
            await inventory.record(connection, erasure_id, artefacts)
            gone = await inventory.blobs_of(connection, found, artefacts)
            await inventory.mark_purged(connection, artefacts)
            await blobs.drop(connection, gone)
            await worker_caches.order_drops(connection, erasure_id)  # if the fence's process died before it did
            await taint.note(connection, erasure_id, num_bytes)
            await inventory.forget_seeds(connection, [one.cohort_id for one in found.affected])
            if found.erasure.scope == "client":
                await accounts.end_credentials(connection, [s.client_id for s in found.subjects], now, ends_at)
        crashpoint("erasure.after-record")
        await self._storage.delete_dropped()
        doomed |= await self._made_meanwhile(found, doomed, epochs)
        await self._shredder.shred(found, doomed, epochs)
        crashpoint("erasure.after-keys")
        await self._kept_updates.sweep()
        await remove_orphans(self._database, self._storage.blobs)
        await self._database.forget_pages()
        crashpoint("erasure.after-purge")
        try:
            await self._note_caches(found)
            envelope = await self.certificates.issue(found)
        except (InvariantBroken, CertificateRefused, KeyUnreadable) as problem:
            log.error("certificate.refused", erasure=str(erasure_id), error=str(problem))
            reason = f"the certificate was refused: {problem}"
            await self._shell.handle(HoldErasure(erasure_id, job.id, found.erasure.version, reason))
            return
        crashpoint("erasure.after-signing")
        await self._shell.handle(CompleteErasure(erasure_id, job.id, found.erasure.version, envelope.decode()))
        await self._kept_updates.thin([one.cohort_id for one in found.affected])

    async def _made_meanwhile(
        self, found: ErasureRecord, doomed: set[KeyName], epochs: dict[UUID, int]
    ) -> set[KeyName]:
        """Keys that were made after the others were looked up, to seal what lay plain; nobody makes any from now on."""
        late = await self._shredder.doomed(found, epochs) - doomed
        if late:
            keys = [FoundArtefact("sealing-key", digest) for digest in self._shredder.digests_of(late)]
            async with self._database.write() as connection:
                await inventory.record(connection, found.erasure.id, keys)
        return late

    async def _note_caches(self, found: ErasureRecord) -> None:
        """What workers have said by now; who says nothing holds up no request."""
        salt = bytes.fromhex(found.erasure.salt)
        async with self._database.write() as connection:
            said = await worker_caches.of_request(connection, found.erasure.id)
            named = {
                f"sha256:{hmac.digest(salt, b'cache of ' + one.name.encode(), hashlib.sha256).hex()}": one.is_confirmed
                for one in said
            }
            await artefact_rows.note_caches(connection, found.erasure.id, named)

    async def release_salts(self) -> None:
        """Write the openings of requests that an earlier release completed; what fails is tried at the next start."""
        try:
            await self.certificates.release_salts()
        except TROUBLE as error:
            log.error("openings.unwritten", exc_info=error)

    async def scrub_old(self) -> int:
        """Take out of rows what an older release left there of clients that it erased; returns of how many requests.
        Their certificates said nothing of it, and stand."""
        async with self._database.read() as connection:
            erasure_ids = await requests_left_unscrubbed(connection)
        for erasure_id in erasure_ids:
            async with self._database.write() as connection:
                found = await inventory.erasure_record(connection, erasure_id)
                await scrub(connection, found, await inventory.inventory(connection, found, None))
        if erasure_ids:
            await self._database.forget_pages()
        return len(erasure_ids)


def _digests_of(artefacts: list[FoundArtefact]) -> tuple[set[str], set[str]]:
    """Of models and steps towards them, and of what clients sent."""
    models = {one.digest for one in artefacts if one.kind in taint.OF_MODELS}
    return models, {one.digest for one in artefacts if one.kind in taint.OF_CLIENTS}


def _may_purge(found: ErasureRecord, job: Job) -> bool:
    """Whether all models are clean: the request says so, or it said so and an earlier attempt of this job broke."""
    if found.erasure.status == "requires_action":
        return job.num_failures > 0 and bool(found.erasure.fenced_at) and all(one.done_at for one in found.affected)
    return found.erasure.status == "verifying"
