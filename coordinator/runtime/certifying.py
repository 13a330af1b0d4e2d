"""What a certificate says of an erasure: the state of its request, its cohorts and its artefacts, as a predicate that
is then signed. Reads the database and the stores; changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import version
from typing import Any, Literal
from uuid import UUID

from pydantic import JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import GIVEN_UP, Line
from coordinator.runtime.signing import SigningKeys
from coordinator.runtime.storage import Storage
from coordinator.store import exclusions, inventory, reading
from coordinator.store.database import Database
from coordinator.store.inventory import Artefact, Dossier
from services.audit import predicate as p
from services.audit.certificate import issue
from services.audit.keys import key_id
from services.core import digests
from services.core.errors import InvariantBroken


class Certifying:
    def __init__(self, database: Database, storage: Storage, keys: SigningKeys) -> None:
        self._database, self._storage, self._keys = database, storage, keys

    async def certificate(self, found: Dossier, artefacts: list[Artefact], purged_at: datetime) -> bytes:
        key = await asyncio.to_thread(self._keys.load)
        heads = served(found)
        async with self._database.read() as connection:
            dispositions = await self._dispositions(connection, found, artefacts, purged_at)
            steps = await inventory.replayable_steps(connection, [head for _, head, _ in heads])
            acknowledged = await exclusions.acknowledged(connection, found.erasure.id)
            now = await self._database.now(connection)
        counts: dict[p.ArtefactKind | Literal["cohort"], p.Count] = {}
        for kind in sorted({d.kind for d in dispositions}):
            planned = len({a.digest for a in artefacts if _OLD_KINDS.get(a.kind, a.kind) == kind})
            counts[kind] = p.Count(planned=planned, done=sum(d.kind == kind for d in dispositions))
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
            limits=(*p.STANDING_LIMITS, *_stopped_early(found)),
            issuer=p.Issuer(coordinator_version=version("lethe"), key_id=key_id(key.public_key())),
        )
        return issue(predicate, [(name, digest) for name, _, digest in heads], key)

    async def _dispositions(
        self, connection: AsyncConnection, found: Dossier, artefacts: list[Artefact], purged_at: datetime
    ) -> list[p.Artefact]:
        """One for each artefact that is really gone, or whose bytes another has as its own."""
        federation_id, keys = found.erasure.federation_id, self._storage.sealing.keys
        others = await reading.left(connection, federation_id, sorted({a.digest for a in artefacts}))
        left = {digests.of_bytes(key) for name in keys.names() if (key := keys.find(name)) is not None}
        dispositions = []
        for artefact in artefacts:
            disposition: p.Disposition = "deleted"
            reason = "its bytes and its record of them are deleted"
            if artefact.kind == "credential":
                reason = "the credential is revoked"
            elif artefact.kind == "sealing-key":
                if artefact.digest in left:
                    raise InvariantBroken("a key is still there after its purge")
                reason = "the key is destroyed: whatever it sealed can be read by nobody, wherever a copy of it lies"
            elif (other := others.get(artefact.digest)) is not None:
                if not other.is_live:
                    raise InvariantBroken(f"{artefact.digest} is still stored after its purge")
                disposition, reason = "superseded", "the same bytes are also of somebody who stays"
            dispositions.append(
                p.Artefact(
                    kind=_OLD_KINDS.get(artefact.kind, artefact.kind),
                    digest=artefact.digest,
                    disposition=disposition,
                    reason=reason,
                )
            )
        return list({(one.kind, one.digest): one for one in dispositions}.values())


_OLD_KINDS: dict[str, Any] = {"step": "blob", "upload": "blob", "part": "blob", "credential": "key"}


def leavers(found: Dossier) -> list[UUID]:
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
