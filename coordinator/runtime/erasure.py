"""The steps of an erasure that reach outside the database: the tombstone before the fence, the purge, the certificate.

Each is a job of the outbox: it may be carried out twice, by two processes, and ends the same.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from coordinator.blobs.port import BlobStore
from coordinator.bus.port import Bus, cached_blob
from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import Job
from coordinator.engine.messages import ApproveErasure, CompleteErasure, FenceErasure, FileErasure, HoldErasure
from coordinator.engine.react import EVIDENCE
from coordinator.runtime.certifying import OF_BYTES, Certifying, leavers
from coordinator.runtime.evidence import TROUBLE, described
from coordinator.runtime.history import Keeping
from coordinator.runtime.shell import Shell
from coordinator.store import inventory, outbox
from coordinator.store.database import Database, Unavailable
from coordinator.store.inventory import Artefact, Dossier, Found
from coordinator.tombstones.port import ErasedSamples, FencedCohort, Tombstone, TombstoneLog
from services.audit.certificate import CertificateRefused
from services.audit.keys import KeyUnreadable, load_or_create_key
from services.core import digests
from services.core.errors import InvariantBroken
from services.wire.v1.erasure import LEGAL_DAYS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

log = structlog.get_logger()
SIGNING_KEY = "signing-key.pem"
DELETED_AT_ONCE = 200


class Erasing:
    def __init__(
        self,
        database: Database,
        shell: Shell,
        blobs: BlobStore,
        bus: Bus,
        tombstones: TombstoneLog,
        key_path: Path,
        keeping: Keeping,
    ) -> None:
        self._database, self._shell, self._blobs, self._bus = database, shell, blobs, bus
        self._tombstones, self._key_path, self._keeping = tombstones, key_path, keeping
        self.certifying = Certifying(database, blobs, keeping, key_path)

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
                version = await outbox.erasure_version(connection, erasure_id)
            if version is not None:
                await self._shell.handle(HoldErasure(erasure_id, None, version, reason))
        except Exception as other:
            log.error("erasure.untold", erasure=str(erasure_id), exc_info=other)

    async def fence(self, job: Job) -> None:
        """Write the tombstone to the log outside the database, then fence."""
        erasure_id = UUID(job.params["erasure_id"])
        async with self._database.read() as connection:
            found = await inventory.dossier(connection, erasure_id)
            touched = await outbox.cohorts_with(connection, [s.client_id for s in found.subjects])
            now = await self._database.now(connection)
        entry = Tombstone(
            request_id=erasure_id,
            federation_id=found.erasure.federation_id,
            scope=found.erasure.scope,
            client_ids=tuple(s.client_id for s in found.subjects),
            cohorts=tuple(FencedCohort(run_id=r, cohort_id=c, epoch=epoch + 1) for r, c, epoch in touched),
            samples=tuple(
                ErasedSamples(client_id=s.client_id, samples=tuple(found.erasure.samples[s.name]))
                for s in found.subjects
                if s.name in found.erasure.samples
            ),
            at=now,
        )
        if found.erasure.awaits_fence:
            await asyncio.to_thread(self._tombstones.append, entry)
        crashpoint("erasure.after-tombstone")
        await self._shell.handle(FenceErasure(erasure_id, job.id))
        crashpoint("erasure.after-fence")

    async def purge(self, job: Job) -> None:
        """Delete what is derived from the leavers, check that it is gone, sign, complete."""
        erasure_id = UUID(job.params["erasure_id"])
        async with self._database.read() as connection:
            leaving = leavers(await inventory.dossier(connection, erasure_id))
        keys = [Found("sealing-key", digests.of_bytes(key)) for key in await self._keeping.keys_of(leaving)]
        async with self._database.write() as connection:
            found = await inventory.dossier(connection, erasure_id)
            if not _may_purge(found, job):
                return
            artefacts = [*await inventory.inventory(connection, found), *keys]
            listed = await inventory.record(connection, erasure_id, artefacts)
            await inventory.mark_purged(connection, artefacts)
            await inventory.forget_seeds(connection, [line.cohort_id for line in found.lines])
            now = await self._database.now(connection)
            if found.erasure.scope == "client":
                await outbox.revoke_credentials(connection, [s.client_id for s in found.subjects], now)
        crashpoint("erasure.after-record")
        await self._delete(found, listed, now)
        crashpoint("erasure.after-purge")
        try:
            envelope = await self.certifying.certificate(found, now)
        except (InvariantBroken, CertificateRefused, KeyUnreadable) as problem:
            log.error("certificate.refused", erasure=str(erasure_id), error=str(problem))
            reason = f"the certificate was refused: {problem}"
            await self._shell.handle(HoldErasure(erasure_id, job.id, found.erasure.version, reason))
            return
        crashpoint("erasure.after-signing")
        await self._shell.handle(CompleteErasure(erasure_id, job.id, found.erasure.version, envelope.decode()))
        await self._keeping.thin([line.cohort_id for line in found.lines])

    async def _delete(self, found: Dossier, listed: list[Artefact], now: datetime) -> None:
        """Records and bytes together, a few at a time: whoever uploads the same bytes meanwhile waits, then finds them
        gone."""
        federation_id = found.erasure.federation_id
        stored = sorted((a for a in listed if a.kind in OF_BYTES), key=lambda a: a.digest)
        for some in inventory.batched(stored, DELETED_AT_ONCE):
            async with self._database.write() as connection:
                forgotten = await inventory.forget_blobs(connection, federation_id, some)
                await self._blobs.delete(federation_id, *forgotten)
                for digest in forgotten:
                    await self._bus.cache_drop(cached_blob(federation_id, digest))
        await self._keeping.shred(leavers(found))
        if found.erasure.fenced_at is not None:  # whatever was not finished before the fence never will be
            await self._blobs.sweep_parts((now - found.erasure.fenced_at).total_seconds(), federation_id)

    async def public_key(self) -> Ed25519PublicKey:
        """What certificates are verified with."""
        return (await asyncio.to_thread(load_or_create_key, self._key_path)).public_key()

    async def release_salts(self) -> None:
        """Of requests that an earlier release completed; what cannot be written today is at the next start."""
        try:
            await self.certifying.release_salts()
        except TROUBLE as error:
            log.error("openings.unwritten", exc_info=error)

    async def refence(self) -> int:
        """Fence again what the log remembers and the database does not: it was restored from an older backup."""
        entries = await asyncio.to_thread(self._tombstones.entries)
        again = 0
        for entry in entries:
            async with self._database.read() as connection:
                known = await outbox.erasure_status(connection, entry.request_id)
                names = await outbox.names_to_erase(connection, list(entry.client_ids))
                samples = {
                    name: list(one.samples)
                    for one in entry.samples
                    for name in await outbox.names_to_erase(connection, [one.client_id])
                }
                now = await self._database.now(connection) + timedelta(seconds=1)
            if known not in (None, "received", "awaiting_approval") or not names:
                continue
            if known is None:
                await self._shell.handle(
                    FileErasure(
                        erasure_id=entry.request_id,
                        federation_id=entry.federation_id,
                        subjects=tuple(names),
                        requested_by="the log of tombstones",
                        legal_deadline=max(now, entry.at + timedelta(days=LEGAL_DAYS)),
                        salt=os.urandom(32).hex(),
                        scope=entry.scope,
                        samples=samples,
                        is_tombstoned=True,
                    )
                )
            elif known == "awaiting_approval":
                await self._shell.handle(ApproveErasure(entry.request_id))
            await self._shell.handle(FenceErasure(entry.request_id, entry.request_id))
            again += 1
        return again


def _may_purge(found: Dossier, job: Job) -> bool:
    """Whether all models are clean: the request says so, or it said so and an earlier attempt of this job broke."""
    if found.erasure.status == "requires_action":
        return job.num_failures > 0 and bool(found.erasure.fenced_at) and all(line.done_at for line in found.lines)
    return found.erasure.status == "verifying"
