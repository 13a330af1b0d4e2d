"""The steps of an erasure that reach outside the database: the tombstone before the fence, the purge, the certificate.

Each is a job of the outbox: it may be carried out twice, by two processes, and ends the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import structlog
from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.blobs.port import BlobStore
from coordinator.bus.port import CREDENTIALS_DROPPED, Bus, cached_blob
from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import GIVEN_UP, Job, Line
from coordinator.engine.messages import ApproveErasure, CompleteErasure, FenceErasure, FileErasure, HoldErasure
from coordinator.engine.react import EVIDENCE
from coordinator.runtime.evidence import TROUBLE, described
from coordinator.runtime.history import Keeping
from coordinator.runtime.shell import Shell
from coordinator.store import accounts, caches, exclusions, inventory, outbox, scrubbing
from coordinator.store.caches import WorkerCache
from coordinator.store.database import Database, Unavailable
from coordinator.store.inventory import Artefact, Dossier, Found
from coordinator.store.tables import SCRUBBED_KINDS
from coordinator.tombstones.port import ErasedSamples, FencedCohort, Tombstone, TombstoneLog
from services.audit import predicate as p
from services.audit.certificate import CertificateRefused, issue
from services.audit.keys import KeyUnreadable, key_id, load_or_create_key
from services.core import digests
from services.core.errors import InvariantBroken
from services.wire.v1.erasure import LEAVER_READS_DAYS, LEGAL_DAYS

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
        *,
        scrubs: bool = True,
    ) -> None:
        """`scrubs`: whether a purge takes out what rows say of a client. An experiment's figures are its result."""
        self._database, self._shell, self._blobs, self._bus = database, shell, blobs, bus
        self._tombstones, self._key_path, self._keeping, self._scrubs = tombstones, key_path, keeping, scrubs

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
        await self._forget_tokens(_leavers(found))
        async with self._database.write() as connection:
            await caches.order_drops(connection, erasure_id)
        crashpoint("erasure.after-fence")

    async def _forget_tokens(self, leavers: list[UUID]) -> None:
        """Nobody remembers them as they were before the fence."""
        async with self._database.read() as connection:
            dropped = await accounts.credentials_of(connection, leavers)
        if dropped:
            self._bus.publish(CREDENTIALS_DROPPED, ",".join(map(str, dropped)))

    async def purge(self, job: Job) -> None:
        """Delete what is derived from the leavers, check that it is gone, sign, complete."""
        erasure_id = UUID(job.params["erasure_id"])
        async with self._database.read() as connection:
            leavers = _leavers(await inventory.dossier(connection, erasure_id))
        keys = [Found("sealing-key", digests.of_bytes(key)) for key in await self._keeping.keys_of(leavers)]
        async with self._database.write() as connection:
            found = await inventory.dossier(connection, erasure_id)
            if not _may_purge(found, job):
                return
            artefacts = [*await inventory.inventory(connection, found), *keys]
            if self._scrubs:
                artefacts += await scrubbing.scrub(connection, found, artefacts)
            listed = await inventory.record(connection, erasure_id, artefacts)
            listed = [artefact for artefact in listed if artefact.kind not in SCRUBBED_KINDS]
            await inventory.mark_purged(connection, artefacts)
            await caches.order_drops(connection, erasure_id)  # if the fence's process died before it did
            await inventory.forget_seeds(connection, [line.cohort_id for line in found.lines])
            now = await self._database.now(connection)
            if found.erasure.scope == "client":
                ends_at = now + timedelta(days=LEAVER_READS_DAYS)
                await accounts.end_credentials(connection, [s.client_id for s in found.subjects], now, ends_at)
        crashpoint("erasure.after-record")
        await self._delete(found, listed, now)
        await self._database.forget_pages()
        crashpoint("erasure.after-purge")
        try:
            envelope = await self._certificate(found, listed, now)
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
        stored = sorted((a for a in listed if a.kind not in ("key", "sealing-key")), key=lambda a: a.digest)
        for some in inventory.batched(stored, DELETED_AT_ONCE):
            async with self._database.write() as connection:
                forgotten = await inventory.forget_blobs(connection, federation_id, some)
                await self._blobs.delete(federation_id, *forgotten)
                for digest in forgotten:
                    await self._bus.cache_drop(cached_blob(federation_id, digest))
        await self._keeping.shred(_leavers(found))
        if found.erasure.fenced_at is not None:  # whatever was not finished before the fence never will be
            await self._blobs.sweep_parts((now - found.erasure.fenced_at).total_seconds(), federation_id)

    async def public_key(self) -> Ed25519PublicKey:
        """What certificates are verified with."""
        return (await asyncio.to_thread(load_or_create_key, self._key_path)).public_key()

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

    async def scrub_old(self) -> int:
        """Take out of rows what an older release left there of clients that it erased; returns of how many requests.
        Their certificates said nothing of it, and stand."""
        async with self._database.read() as connection:
            erasure_ids = await scrubbing.unscrubbed(connection)
        for erasure_id in erasure_ids:
            async with self._database.write() as connection:
                found = await inventory.dossier(connection, erasure_id)
                await scrubbing.scrub(connection, found, await inventory.inventory(connection, found))
        if erasure_ids:
            await self._database.forget_pages()
        return len(erasure_ids)

    async def _certificate(self, found: Dossier, artefacts: list[Artefact], purged_at: datetime) -> bytes:
        key = await asyncio.to_thread(load_or_create_key, self._key_path)
        heads = served(found)
        async with self._database.read() as connection:
            dispositions = await self._dispositions(connection, found, artefacts, purged_at)
            steps = await inventory.replayable_steps(connection, [head for _, head, _ in heads])
            acknowledged = await exclusions.acknowledged(connection, found.erasure.id)
            cached = await caches.of_request(connection, found.erasure.id)
            now = await self._database.now(connection)
        counts: dict[p.ArtefactKind | Literal["cohort"], p.Count] = {}
        for kind in sorted({a.kind for a in artefacts}):
            planned = sum(a.kind == kind for a in artefacts)
            done = sum(d.kind == kind for d in dispositions)
            counts[kind] = p.Count(planned=planned, done=done)  # type: ignore[index]  # none of those that are scrubbed
        done = sum(line.done_at is not None for line in found.lines)
        counts["cohort"] = p.Count(planned=len(found.lines), done=done)
        predicate = p.ErasurePredicate(
            request=_request(found, now),
            method=p.Method(name=_method(found), parameters=_parameters(found)),
            guarantee=p.Guarantee.plain(_guarantee(found)),
            cohorts=tuple(outcome(found, line) for line in found.lines),
            artefacts=tuple(dispositions),
            counts=counts,
            still_shaped_by=_still_shaped_by(found),
            workers=p.Workers(
                confirmed=_commitments(found, lambda client_id: client_id in acknowledged),
                unconfirmed=_commitments(found, lambda client_id: client_id not in acknowledged),
            ),
            audit=tuple(_audit(found)),
            replayable=p.Replayable.of(steps.num_replayable, steps.num_steps),
            limits=(*p.STANDING_LIMITS, *_in_caches(cached), *_stopped_early(found)),
            issuer=p.Issuer(coordinator_version=version("lethe"), key_id=key_id(key.public_key())),
        )
        return issue(predicate, [(name, digest) for name, _, digest in heads], key)

    async def _dispositions(
        self, connection: AsyncConnection, found: Dossier, artefacts: list[Artefact], purged_at: datetime
    ) -> list[p.Artefact]:
        """One for each artefact that is really gone, or whose bytes are those of a clean one."""
        federation_id = found.erasure.federation_id
        clean = await inventory.clean_digests(connection, federation_id, [a.digest for a in artefacts])
        clean |= await inventory.needed_uploads(connection, federation_id, artefacts)
        clean |= await inventory.uploaded_since(connection, federation_id, purged_at)
        ends = await inventory.ends_of_credentials(connection, _leavers(found))
        dispositions = []
        for artefact in artefacts:
            disposition: p.Disposition = "deleted"
            reason = "its bytes and its record of them are deleted"
            if artefact.kind == "key":
                ends_at = ends.get(artefact.digest)
                reason = "the credential is revoked"
                if ends_at is not None and ends_at > purged_at:
                    disposition = "retained-by-policy"
                    reason = f"the credential can only read its own request and certificate, until {ends_at:%Y-%m-%d}"
            elif artefact.kind == "sealing-key":
                if await self._keeping.keys_of(_leavers(found)):
                    raise InvariantBroken("a key of kept updates is still there after its purge")
                reason = "the key is destroyed: whatever it sealed can be read by nobody, wherever a copy of it lies"
            elif artefact.digest in clean:
                disposition, reason = "superseded", "the same bytes are also of somebody who stays"
            elif await self._blobs.stat(federation_id, artefact.digest) is not None:
                raise InvariantBroken(f"{artefact.digest} is still stored after its purge")
            elif artefact.kind == "blob":
                reason = "it was never part of a model, and its bytes are deleted"
            kind: p.ArtefactKind = artefact.kind  # type: ignore[assignment]  # none of those that are scrubbed
            dispositions.append(p.Artefact(kind=kind, digest=artefact.digest, disposition=disposition, reason=reason))
        return dispositions


def _may_purge(found: Dossier, job: Job) -> bool:
    """Whether all models are clean: the request says so, or it said so and an earlier attempt of this job broke."""
    if found.erasure.status == "requires_action":
        return job.num_failures > 0 and bool(found.erasure.fenced_at) and all(line.done_at for line in found.lines)
    return found.erasure.status == "verifying"


def _leavers(found: Dossier) -> list[UUID]:
    """Those who leave for good; who only forgets samples seals on with the same key."""
    return [s.client_id for s in found.subjects] if found.erasure.scope == "client" else []


def served(found: Dossier) -> list[tuple[str, UUID, str]]:
    """(name, checkpoint, digest) of every model that is served now by the runs concerned."""
    rows = [
        (f"{found.runs[c.run_id].name}/{c.run_id}/{c.name}", c.head_id, c.head_digest)
        for c in found.cohorts.values()
        if c.head_id is not None and c.head_digest is not None and c.phase != "retired"
    ]
    return sorted(rows)


def _method(found: Dossier) -> str:
    if found.erasure.chosen is None:
        raise InvariantBroken("a certificate without a method")
    return found.erasure.chosen


def _guarantee(found: Dossier) -> p.GuaranteeKind:
    """Of what was done, which may be more than was asked for."""
    return "approximate" if any(line.action == "unlearned" for line in found.lines) else "exact"


def _audit(found: Dossier) -> Iterator[p.AuditFigure]:
    """What was measured of the mended cohorts: of each leaver, beside the same figure of the model before the erasure,
    and of those who remain; with the verdict on each figure that was judged."""
    for line in found.lines:
        if line.audit is None or line.action != "unlearned":
            continue
        judged = {(check.get("client"), check["name"]): check["why"] for check in line.audit["checks"]}
        for name, value in sorted(line.audit["figures"].items()):
            why = judged.get((None, name), "")
            yield p.AuditFigure(name=f"{line.cohort_name}/{name}", value=value, reference_is=why)
        for leaver, own in sorted(line.audit.get("leavers", {}).items()):
            place = f"{line.cohort_name}/{p.commit(leaver, _salt(found))}"
            for name, value in sorted(own["figures"].items()):
                why = judged.get((leaver, name), "")
                before = own["before"].get(name)
                said = filter(None, ("" if before is None else "the model before the erasure", why))
                yield p.AuditFigure(name=f"{place}/{name}", value=value, reference=before, reference_is="; ".join(said))


def _salt(found: Dossier) -> bytes:
    return bytes.fromhex(found.erasure.salt)


def _parameters(found: Dossier) -> dict[str, JsonValue]:
    return {"recovery_rounds": found.erasure.recovery_rounds, **found.erasure.params}


def _commitments(found: Dossier, wanted: Callable[[UUID], bool]) -> tuple[str, ...]:
    return tuple(sorted(p.commit(s.name, _salt(found)) for s in found.subjects if wanted(s.client_id)))


def _request(found: Dossier, now: datetime) -> p.Request:
    erasure = found.erasure
    if erasure.fenced_at is None:
        raise InvariantBroken("a certificate without a fence")
    return p.Request(
        id=erasure.id,
        subjects=tuple(sorted(p.commit(s.name, _salt(found)) for s in found.subjects)),
        scope=erasure.scope,
        regulation=erasure.regulation,
        submitted_at=erasure.created_at,
        fenced_at=erasure.fenced_at,
        first_clean_at=erasure.first_clean_at or erasure.fenced_at,
        completed_at=now,
        legal_deadline=erasure.legal_deadline,
    )


def outcome(found: Dossier, line: Line) -> p.CohortOutcome:
    cohort = found.cohorts[line.cohort_id]
    is_served = cohort.phase != "retired" and cohort.head_digest is not None
    became: p.Outcome = line.action if is_served else "retired"
    if became == "rolled-back" and line.rollback_digest is None:
        became = "retrained"
    return p.CohortOutcome(
        run=line.run_id,
        name=line.cohort_name,
        epoch_before=line.epoch_before,
        epoch_after=cohort.epoch,
        round_at_fence=line.round_at_fence,
        outcome=became,
        rollback_point=line.rollback_digest if is_served else None,
        parents=tuple(p.Parent(digest=s["digest"], weight=s["weight"]) for s in line.sources if is_served),
        round_reached=cohort.round if is_served else 0,
        head=cohort.head_digest if is_served else None,
    )


def _stopped_early(found: Dossier) -> tuple[str, ...]:
    """Lines that never got back to the round they had, because nobody goes on with their run."""
    stopped = []
    for line in found.lines:
        run, cohort = found.runs[line.run_id], found.cohorts[line.cohort_id]
        if run.status in GIVEN_UP and line.action != "retired" and cohort.round < line.target_round:
            where = f"Cohort {line.cohort_name} of run {run.id} stopped at round {cohort.round}"
            stopped.append(f"{where}, before round {line.target_round}: the run is {run.status}.")
    return tuple(stopped)


def _in_caches(cached: list[WorkerCache]) -> tuple[str, ...]:
    """What workers said of the superseded models in their caches."""
    if not cached:
        return ()
    confirmed = sum(one.is_confirmed for one in cached)
    said = f"{confirmed} of the {len(cached)} workers that may have had superseded models in their caches"
    return (f"{said} have said that they deleted them; of the others nothing is known.",)


def _still_shaped_by(found: Dossier) -> tuple[p.Influence, ...]:
    kinds = {run.spec.topology.kind for run in found.runs.values()}
    stop = any(run.spec.stop.accuracy is not None for run in found.runs.values())
    evaluated = any(run.spec.validation.at_clients for run in found.runs.values())
    shaped: list[tuple[p.Aspect, str]] = [
        ("hyper-parameters", "The run's parameters were chosen while the leaver was a member."),
        ("selection-state", "Which clients were drawn in past rounds depended on who was a member."),
    ]
    if "clusters" in kinds:
        shaped.append(("cluster-assignment", "The clusters were formed with the leaver among the clients."))
    if "tree" in kinds or "bi_model" in kinds:
        shaped.append(("tree-shape", "The tree was built with the leaver among its leaves."))
    if stop:
        shaped.append(("stop-round", "The stop rule looks at accuracies of models that the leaver took part in."))
    if evaluated:
        shaped.append(("validation-by-its-evaluation-tasks", "Past models were judged on the leaver's data as well."))
    return tuple(p.Influence(aspect=aspect, explanation=why) for aspect, why in sorted(shaped))
