"""What a certificate says of an erasure: the state of its request, its cohorts and its artefacts, as a predicate that
is then signed. What was found to purge is read from the table of artefacts in pages; the list of it, and the opening of
the pseudonyms, are written to the directory of evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Final
from uuid import UUID

from pydantic import JsonValue

from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import GIVEN_UP, AffectedCohort, Erasure, Party
from coordinator.runtime.certificate_files import CertificateFiles, DraftList
from coordinator.runtime.signing import SigningKeys
from coordinator.runtime.storage import Storage
from coordinator.store import artefacts, blobs, evidence, exclusions, inventory, read_permissions
from coordinator.store.artefacts import Listed
from coordinator.store.database import Database
from coordinator.store.inventory import ErasureRecord
from coordinator.store.scrubbing.scope import is_mentioned
from services.audit import predicate as p
from services.audit.artefact_list import Artefact
from services.audit.certificate import issue
from services.audit.keys import key_id
from services.audit.opening import Opening
from services.audit.predicate import ArtefactKind, Disposition
from services.core import digests
from services.core.errors import InvariantBroken
from services.methods.catalogue import SELECTION, package_of
from services.wire.v1.runs import RunSpec, policy_of

OF_BYTES: Final = frozenset[ArtefactKind]({"update", "history", "checkpoint", "merge", "step", "upload", "part"})
"""Kinds that lie in the blob store."""
IS_ALWAYS: Final[Mapping[ArtefactKind, Disposition]] = {"credential": "revoked", "sealing-key": "destroyed"}
"""Unless the record says otherwise."""
LONGEST_NAME: Final = 200
SEALED_LATE: Final = "sealed-late"
"""The incident of an upgrade that found plain blobs."""


class CertificateIssuer:
    def __init__(self, database: Database, storage: Storage, keys: SigningKeys) -> None:
        self._database, self._storage, self._keys = database, storage, keys
        self.files = CertificateFiles(keys.directory)

    async def issue(self, found: ErasureRecord) -> bytes:
        """Sign what was found. The list and the opening lie in the directory of evidence before anybody can have the
        certificate."""
        key = await asyncio.to_thread(self._keys.load)
        opening = await asyncio.to_thread(self.files.keep_opening, _opening(found))
        crashpoint("erasure.after-opening")
        async with self._database.read() as connection:
            now = await self._database.now(connection)
        await asyncio.to_thread(self.files.prepare, now)
        draft = self.files.new_list()
        try:
            listed = await self._listed(draft, found)
            predicate, subjects = await self._predicate(found, opening, listed, key_id(key.public_key()))
            envelope = issue(predicate, subjects, key)
            path = self.files.list_path(found.erasure.id, listed.root)
            await asyncio.to_thread(draft.publish, path)
        finally:
            draft.close()
        return envelope

    async def release_salts(self) -> int:
        """Write the openings of requests that an earlier release completed; their salts then leave the database."""
        async with self._database.read() as connection:
            salted = await artefacts.salted(connection)
        for one in salted:
            opening = Opening(request=one.erasure_id, federation=one.federation_id, clients=one.names, salt=one.salt)
            await asyncio.to_thread(self.files.keep_opening, opening)
            async with self._database.write() as connection:
                await artefacts.forget_salt(connection, one.erasure_id)
        return len(salted)

    async def _predicate(
        self, found: ErasureRecord, opening: Opening, listed: p.Artefacts, issuer: str
    ) -> tuple[p.ErasurePredicate, list[tuple[str, str]]]:
        """The claim, and the models that it speaks of."""
        heads = served(found)
        async with self._database.read() as connection:
            steps = await inventory.replayable_steps(connection, [head for _, head, _ in heads])
            acknowledged = await exclusions.acknowledged(connection, found.erasure.id)
            happened = await evidence.incidents(connection)
            was_plain = await blobs.are_any_plain(connection) or any(one.kind == SEALED_LATE for one in happened)
            now = await self._database.now(connection)
        done = sum(one.done_at is not None for one in found.affected)
        predicate = p.ErasurePredicate(
            federation=found.erasure.federation_id,
            request=_request(found, opening, now),
            handling=_handling(found),
            method=_method(found),
            guarantee=p.Guarantee.plain(_guarantee(found)),
            cohorts=tuple(outcome(found, one) for one in found.affected),
            num_cohorts=p.Count(planned=len(found.affected), done=done),
            artefacts=listed,
            still_shaped_by=_still_shaped_by(found),
            workers=p.Workers(
                confirmed=_commitments(found, opening, lambda client_id: client_id in acknowledged),
                unconfirmed=_commitments(found, opening, lambda client_id: client_id not in acknowledged),
            ),
            audit=tuple(_audit(found, opening)),
            replayable=p.Replayable.of(steps.num_replayable, steps.num_steps),
            limits=(*p.STANDING_LIMITS, *((p.PLAIN_BACKUPS,) if was_plain else ()), *_stopped_early(found)),
            incidents=tuple(p.Incident(**one._asdict()) for one in happened),
            issuer=p.Issuer(coordinator_version=version("lethe"), key_id=issuer),
        )
        return predicate, [(name, digest) for name, _, digest in heads]

    async def _listed(self, draft: DraftList, found: ErasureRecord) -> p.Artefacts:
        """Write every artefact of the request to the list, with what became of it."""
        keys = self._storage.sealer.keys
        left = {digests.of_bytes(key) for name in keys.names() if (key := keys.find(name)) is not None}
        async with self._database.read() as connection:
            planned = await artefacts.planned(connection, found.erasure.id)
            page = await artefacts.page(connection, found.erasure.id, None)
        while page:
            if any(one.kind == "sealing-key" and one.digest in left for one in page):
                raise InvariantBroken("a key is still there after its purge")
            settled = await self._settled(found.erasure, page)
            try:
                await asyncio.to_thread(draft.write, settled)
            except ValueError as error:  # a record that no list can hold
                raise InvariantBroken(f"an artefact cannot be listed: {error}") from error
            async with self._database.read() as connection:
                page = await artefacts.page(connection, found.erasure.id, page[-1])
        return await asyncio.to_thread(draft.artefacts, planned)

    async def _settled(self, erasure: Erasure, page: list[Listed]) -> list[Artefact]:
        """Each as it was found: nothing is recorded any more under its digest, or equal bytes are another's own. That
        bytes are deleted is never believed; and what lies in the store without a record was removed before."""
        named = sorted({one.digest for one in page if one.kind in OF_BYTES})
        async with self._database.read() as connection:
            others = await read_permissions.left(connection, erasure.federation_id, erasure.id, named)

        def became(one: Listed) -> Disposition:
            said = one.disposition or IS_ALWAYS.get(one.kind)
            if said is not None and not (one.kind in OF_BYTES and said == "deleted"):
                return said
            if one.kind not in OF_BYTES:
                raise InvariantBroken(f"nobody has said what became of {one.kind} {one.digest}")
            if (other := others.get(one.digest)) is None:
                return "deleted"
            if not other.is_clean:
                raise InvariantBroken(f"{one.digest} is still stored after its purge")
            return "also-held-as-operator-upload" if "operator" in other.origins else "also-held-by-another"

        return [Artefact(one.kind, one.digest, became(one), one.reason) for one in page]


def leavers(found: ErasureRecord) -> list[UUID]:
    """The subjects who leave for good; who only forgets samples goes on with the same key."""
    return [s.client_id for s in found.subjects] if found.erasure.scope == "client" else []


def served(found: ErasureRecord) -> list[tuple[str, UUID, str]]:
    """(name, checkpoint, digest) of every model that is served now by the runs concerned."""
    rows = [
        (f"{found.runs[c.run_id].name}/{c.run_id}/{c.name}", c.head_id, c.head_digest)
        for c in found.cohorts.values()
        if c.head_id is not None and c.head_digest is not None and c.phase != "retired"
    ]
    return sorted(rows)


def _method(found: ErasureRecord) -> p.Method:
    if (name := found.erasure.chosen) is None:
        raise InvariantBroken("a certificate without a method")
    package = package_of(name)
    came_with = None if package is None else p.Package(name=package.name, version=package.version)
    return p.Method(name=name, parameters=_parameters(found), package=came_with)


def _guarantee(found: ErasureRecord) -> p.GuaranteeKind:
    """The guarantee of what was done, which may be more than was asked for."""
    return "approximate" if any(one.action == "unlearned" for one in found.affected) else "exact"


def _audit(found: ErasureRecord, opening: Opening) -> Iterator[p.AuditFigure]:
    """What was measured of the mended cohorts: of each leaver, beside the same figure of the model before the erasure,
    and of those who remain; with the verdict on each figure that was judged."""
    for one in found.affected:
        if one.audit is None or one.action != "unlearned":
            continue
        judged = {(check.client, check.name): check.why for check in one.audit.checks}
        for name, value in sorted(one.audit.figures.items()):
            why = judged.get((None, name), "")
            yield p.AuditFigure(name=f"{one.cohort_name}/{name}", value=value, reference_is=why)
        for leaver, own in sorted(one.audit.leavers.items()):
            place = f"{one.cohort_name}/{opening.commitment(leaver)}"
            for name, value in sorted(own.figures.items()):
                why = judged.get((leaver, name), "")
                before = own.before.get(name)
                said = filter(None, ("" if before is None else "the model before the erasure", why))
                yield p.AuditFigure(name=f"{place}/{name}", value=value, reference=before, reference_is="; ".join(said))


def _opening(found: ErasureRecord) -> Opening:
    erasure = found.erasure
    names = tuple(sorted(s.name for s in found.subjects))
    return Opening(request=erasure.id, federation=erasure.federation_id, clients=names, salt=erasure.salt)


def _parameters(found: ErasureRecord) -> dict[str, JsonValue]:
    recovery = found.erasure.recovery
    asked = {} if recovery is None else {"recovery": {"method": recovery.method, "params": dict(recovery.params)}}
    return {"recovery_rounds": found.erasure.recovery_rounds, **asked, **found.erasure.params}


def _commitments(found: ErasureRecord, opening: Opening, wanted: Callable[[UUID], bool]) -> tuple[str, ...]:
    return tuple(sorted(opening.commitment(s.name) for s in found.subjects if wanted(s.client_id)))


def _request(found: ErasureRecord, opening: Opening, now: datetime) -> p.Request:
    erasure = found.erasure
    if erasure.fenced_at is None:
        raise InvariantBroken("a certificate without a fence")
    return p.Request(
        id=erasure.id,
        subjects=_commitments(found, opening, lambda _: True),
        scope=erasure.scope,
        regulation=erasure.regulation,
        submitted_at=erasure.created_at,
        fenced_at=erasure.fenced_at,
        first_clean_at=erasure.first_clean_at or erasure.fenced_at,
        completed_at=now,
        legal_deadline=erasure.legal_deadline,
    )


def _handling(found: ErasureRecord) -> p.Handling | None:
    """None where an older release did not record who filed."""
    erasure = found.erasure
    if erasure.filed_by is None and erasure.ruling is None:
        return None
    extension, ruling = erasure.extension, erasure.ruling
    return p.Handling(
        filed_by=_party(found, erasure.filed_by),
        ground=erasure.ground,
        needed_approval=erasure.needs_approval,
        approved_by=_party(found, ruling.by) if ruling is not None else None,
        approved_at=ruling.at if ruling is not None else None,
        eyes=ruling.eyes if ruling is not None else None,
        deadline_before=extension.deadline_before if extension is not None else None,
    )


def _party(found: ErasureRecord, party: Party | None) -> p.Party | None:
    if party is None:
        return None
    erased = frozenset(subject.name for subject in found.subjects)

    def shown(name: str | None) -> str | None:
        name = (name or "").strip()[:LONGEST_NAME]
        return name if name and not is_mentioned(erased, name) else None

    return p.Party(
        credential=party.credential_id, role=party.role, label=shown(party.label), person=shown(party.person)
    )


def outcome(found: ErasureRecord, one: AffectedCohort) -> p.CohortOutcome:
    cohort = found.cohorts[one.cohort_id]
    is_served = cohort.phase != "retired" and cohort.head_digest is not None
    became: p.Outcome = one.action if is_served else "retired"
    if became == "rolled-back" and one.rollback_digest is None:
        became = "retrained"
    return p.CohortOutcome(
        run=one.run_id,
        name=one.cohort_name,
        epoch_before=one.epoch_before,
        epoch_after=cohort.epoch,
        round_at_fence=one.round_at_fence,
        outcome=became,
        rollback_point=one.rollback_digest if is_served else None,
        parents=tuple(p.Parent(digest=s.digest, weight=s.weight) for s in one.sources if is_served),
        round_reached=cohort.round if is_served else 0,
        head=cohort.head_digest if is_served else None,
    )


def _stopped_early(found: ErasureRecord) -> tuple[str, ...]:
    """Lines that never got back to the round they had, because nobody goes on with their run."""
    stopped = []
    for one in found.affected:
        run, cohort = found.runs[one.run_id], found.cohorts[one.cohort_id]
        if run.status in GIVEN_UP and one.action != "retired" and cohort.round < one.target_round:
            where = f"Cohort {one.cohort_name} of run {run.id} stopped at round {cohort.round}"
            stopped.append(f"{where}, before round {one.target_round}: the run is {run.status}.")
    return tuple(stopped)


def _learnt_policy(spec: RunSpec) -> str | None:
    """The run's selection policy, if it knows clients by more than their names."""
    policy = policy_of(spec.selection).policy
    return policy if policy in SELECTION and SELECTION[policy].order is not None else None


def _still_shaped_by(found: ErasureRecord) -> tuple[p.Influence, ...]:
    kinds = {run.spec.topology.kind for run in found.runs.values()}
    stop = any(run.spec.stop.accuracy is not None for run in found.runs.values())
    evaluated = any(run.spec.validation.at_clients for run in found.runs.values())
    drawn = "Which clients were drawn in past rounds depended on who was a member."
    if learnt := sorted({policy for run in found.runs.values() if (policy := _learnt_policy(run.spec)) is not None}):
        by = ", ".join(learnt)
        drawn += f" Policy {by} drew by what clients, the leaver among them, had sent; its state ended with the fence."
    shaped: list[tuple[p.Aspect, str]] = [
        ("hyper-parameters", "The run's parameters were chosen while the leaver was a member."),
        ("selection-state", drawn),
    ]
    if "clusters" in kinds:
        shaped.append(("cluster-assignment", "The clusters were formed with the leaver among the clients."))
    if "tree" in kinds or "bi_model" in kinds:
        shaped.append(("tree-shape", "The tree was built with the leaver among its leaves."))
    if stop:
        shaped.append(("stop-round", "The stop rule looks at accuracies of models that the leaver took part in."))
    if evaluated:
        shaped.append(("validation-by-its-evaluation-tasks", "Past models were judged on the leaver's data as well."))
    if classes := _recovered_classes(found):
        named = ", ".join(map(str, sorted(classes)))
        why = "The recovery was about the class that lost most accuracy, found by comparing with a model that had the"
        shaped.append(("recovered-class", f"{why} leaver: class {named}."))
    if any(cohort.allotment is not None for cohort in found.cohorts.values()):
        shaped.append(("allocation", "Who served which job was decided from the leaver's figures among others."))
    return tuple(p.Influence(aspect=aspect, explanation=why) for aspect, why in sorted(shaped))


def _recovered_classes(found: ErasureRecord) -> set[int]:
    """The classes that recoveries of the request's cohorts are about, where the server found them."""
    classes = set[int]()
    for line in found.affected:
        stage = found.cohorts[line.cohort_id].recovery
        while stage is not None:
            classes |= {stage.found_class} if stage.found_class is not None else set()
            stage = stage.then
    return classes
