"""Everything that was derived from a client and is, or was, stored; and what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import AffectedCohort, Checkpoint, Cohort, Erasure, Run, Subject
from coordinator.engine.erasure import cuts
from coordinator.store import tables as t
from coordinator.store import warm
from coordinator.store.rows import fetch
from coordinator.store.slices import load_lineage
from services.audit.predicate import ArtefactKind, Disposition
from services.core import digests
from services.methods.catalogue import NOISY_KERNELS

ScrubbedKind = Literal["log-tail", "device", "figure", "canary", "failure-reason", "ledger"]
"""What is taken out of rows that stay; named by a keyed digest of what was there."""
BATCH: Final = 10_000
"""A statement takes some 30 000 parameters on either back end."""
V = TypeVar("V")


class Artefact(NamedTuple):
    """What a certificate accounts for. Credentials are named by the digest of their hash."""

    kind: ArtefactKind
    digest: str


@dataclass(frozen=True, slots=True)
class FoundArtefact:
    """An artefact and the row that names it; an upload has none but the blob's own."""

    kind: ArtefactKind
    digest: str
    row_id: UUID | None = None
    disposition: Disposition | None = None
    """None: it is looked up when the certificate is signed."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ErasureRecord:
    """A request with everything that its purge and certificate are made of."""

    erasure: Erasure
    subjects: list[Subject]
    affected: list[AffectedCohort]
    cohorts: dict[UUID, Cohort]
    runs: dict[UUID, Run]


async def erasure_record(connection: AsyncConnection, erasure_id: UUID) -> ErasureRecord:
    (erasure,) = await fetch(connection, Erasure, t.erasures.c.id == erasure_id)
    subjects = await fetch(connection, Subject, t.subjects.c.erasure_id == erasure_id)
    affected = await fetch(connection, AffectedCohort, t.lines.c.erasure_id == erasure_id)
    run_ids = {one.run_id for one in affected}
    cohorts = await fetch(connection, Cohort, t.cohorts.c.run_id.in_(run_ids))
    runs = await fetch(connection, Run, t.runs.c.id.in_(run_ids))
    return ErasureRecord(
        erasure=erasure,
        subjects=sorted(subjects, key=lambda s: s.name),
        affected=sorted(affected, key=lambda one: (one.run_id, one.cohort_name)),
        cohorts={c.id: c for c in cohorts},
        runs={r.id: r for r in runs},
    )


async def inventory(connection: AsyncConnection, found: ErasureRecord, ends_at: datetime | None) -> list[FoundArtefact]:
    """Everything that was made with the leavers' data, by the lineage and not by any mark: their updates, every model
    with one of these in its ancestry, the updates that anybody trained from such a model, what kernels made of all
    this, uploads that may belong to it and were never submitted, and the leavers' credentials.

    `ends_at`: until when the leavers' credentials can read their own request.

    An update that is in a clean model is clean: it was trained from bytes that came out the same without the leaver."""
    leavers = {s.client_id for s in found.subjects}
    lineage = await load_lineage(connection, leavers)
    tainted = cuts.tainted_checkpoints(lineage, frozenset(leavers))
    given_up = {c.id for c in lineage.checkpoints.values() if c.superseded_by == found.erasure.id}
    models = [lineage.checkpoints[checkpoint_id] for checkpoint_id in tainted | given_up]
    if found.erasure.scope == "samples":  # who stays contributes again, without the samples
        models = [model for model in models if model.superseded_by is not None]
    run_ids = {checkpoint.run_id for checkpoint in lineage.checkpoints.values()}
    artefacts = [FoundArtefact("merge" if c.kind == "merge" else "checkpoint", c.digest, c.id) for c in models]
    artefacts += await _derived(connection, found, leavers, run_ids, models)
    runs = {model.run_id for model in models} | {one.run_id for one in found.affected}
    artefacts += await _unsubmitted(connection, found, leavers, runs)
    artefacts += await _begun_by_operators(connection, found, {one.digest for one in artefacts})
    if found.erasure.scope == "client":
        c = t.credentials.c
        keys = sa.select(c.id, c.secret_hash, c.revoked_at).where(t.credentials.c.client_id.in_(leavers))
        for row in await connection.execute(keys):
            digest = digests.of_bytes(bytes.fromhex(row.secret_hash))
            if ends_at is None or (row.revoked_at is not None and row.revoked_at < ends_at):
                artefacts.append(FoundArtefact("credential", digest, row.id))
            else:
                until = f"it can only read its own request and certificate, until {ends_at:%Y-%m-%d}"
                artefacts.append(FoundArtefact("credential", digest, row.id, "reduced", until))
    return artefacts


async def _derived(
    connection: AsyncConnection, found: ErasureRecord, leavers: set[UUID], run_ids: set[UUID], models: list[Checkpoint]
) -> list[FoundArtefact]:
    """The updates, and what kernels made and was never published: refused at a fence, not yet judged, or only a step
    on the way of a method. Such a step may be trained on and be the input of another: until nothing new is found."""
    j, is_own = t.jobs.c, await _is_own(connection, found, leavers)
    waiting = await _submissions(connection, leavers, run_ids)
    jobs = sa.select(j.id, j.inputs, j.output, j.cohort_id, j.epoch).where(j.run_id.in_(run_ids), j.output.is_not(None))
    # After the fence of an exact method nothing tainted is read, but somebody may have sent the same bytes again.
    since = {one.cohort_id: one.epoch_after for one in found.affected if one.action != "unlearned"}

    def is_after(row: Any) -> bool:
        return row.cohort_id in since and row.epoch >= since[row.cohort_id]

    made_now, outputs = list[Any](), list[Any]()
    for row in await connection.execute(jobs):
        (made_now if is_after(row) else outputs).append(row)
    spared = {row.output for row in made_now}
    bases = {(c.cohort_id, c.digest) for c in models}
    steps: list[FoundArtefact] = []
    made_on_the_way: set[str] = set()
    updates: list[FoundArtefact] = []
    known = {c.digest for c in models}
    while True:
        tainted, left = list[Any](), list[Any]()
        for row in waiting:
            saw_it = (row.cohort_id, row.base_digest) in bases or row.base_digest in made_on_the_way
            is_derived = saw_it and not row.is_clean and not is_after(row)
            (tainted if is_own(row) or is_derived else left).append(row)
        updates += [FoundArtefact("update", row.digest, row.id) for row in tainted]
        waiting = left
        known |= {row.digest for row in tainted}
        made = [row for row in outputs if row.output not in known and not known.isdisjoint(row.inputs)]
        clean = await clean_digests(connection, found.erasure.federation_id, sorted({row.output for row in made}))
        new = [FoundArtefact("step", row.output, row.id) for row in made if row.output not in clean | spared]
        if not new and not tainted:
            break
        steps += new
        made_on_the_way |= {step.digest for step in new}
        known |= made_on_the_way
    return [*updates, *steps, *await _calibrated(connection, updates), *await _copies(connection, updates)]


async def _submissions(connection: AsyncConnection, leavers: set[UUID], run_ids: set[UUID]) -> list[Any]:
    """Updates of the leavers, and of everybody in these runs; with whether each is in a model that is served."""
    u = t.updates.c
    in_clean_model = (
        sa.select(t.contributions.c.update_id)
        .join(t.checkpoints, t.checkpoints.c.id == t.contributions.c.checkpoint_id)
        .where(t.contributions.c.update_id == u.id, t.checkpoints.c.superseded_by.is_(None))
        .exists()
        .label("is_clean")
    )
    columns = (u.id, u.digest, u.client_id, u.cohort_id, u.epoch, u.base_digest, t.cohorts.c.phase)
    statement = sa.select(*columns, in_clean_model).join(t.cohorts, t.cohorts.c.id == u.cohort_id)
    own = u.client_id.in_(leavers) | u.run_id.in_(run_ids)
    return list(await connection.execute(statement.where(own, u.digest.is_not(None))))


async def _is_own(connection: AsyncConnection, found: ErasureRecord, leavers: set[UUID]) -> Callable[[Any], bool]:
    """Whether an update is a leaver's. Of a client that stays: what it made before the fence, in cohorts that were cut
    or had ended by then."""
    staying: set[UUID] = set()
    if found.erasure.scope == "samples":
        active = sa.select(t.clients.c.id).where(t.clients.c.id.in_(leavers), t.clients.c.status != "erased")
        staying = set((await connection.execute(active)).scalars())
    last = {one.cohort_id: one.epoch_before for one in found.affected}

    def is_own(row: Any) -> bool:
        was_before = row.epoch <= last[row.cohort_id] if row.cohort_id in last else row.phase == "retired"
        return row.client_id in leavers and (was_before or row.client_id not in staying)

    return is_own


async def _calibrated(connection: AsyncConnection, derived: list[FoundArtefact]) -> list[FoundArtefact]:
    """What was kept in place of updates."""
    c, found = t.contributions.c, []
    for ids in batched([one.row_id for one in derived], BATCH):
        rows = await connection.execute(
            sa.select(c.update_id, c.digest).where(c.update_id.in_(ids), c.digest.is_not(None))
        )
        found += [FoundArtefact("update", row.digest, row.update_id) for row in rows]
    return found


async def _copies(connection: AsyncConnection, derived: list[FoundArtefact]) -> list[FoundArtefact]:
    """Lossy copies of updates, also those that are not yet stored."""
    k, found = t.kept_updates.c, []
    for ids in batched([one.row_id for one in derived], BATCH):
        mine = k.update_id.in_(ids) & (k.status != "dropped")
        rows = await connection.execute(sa.select(k.id, k.digest, k.source).where(mine))
        found += [FoundArtefact("history", row.digest, row.id) for row in rows if row.digest != row.source]
    return found


async def _unsubmitted(
    connection: AsyncConnection, found: ErasureRecord, leavers: set[UUID], run_ids: set[UUID]
) -> list[FoundArtefact]:
    """What leavers uploaded and never submitted, or never finished; and what anybody uploaded, or a kernel made, in
    these runs for work that was cut off, by whichever request: nobody will ever ask for it again."""
    b, u = t.blobs.c, t.updates.c
    is_submitted = sa.exists().where(u.task_id == b.origin_id, u.digest == b.digest)
    plain = t.blobs.alias("not_sealed")
    is_being_sealed = sa.exists().where(
        plain.c.origin_id == b.origin_id, plain.c.digest == b.digest, plain.c.data_key.is_(None)
    )
    is_left = (b.origin == "task") & ~is_submitted | ((b.origin == "job") & (b.status == "arriving") & ~is_being_sealed)
    of_leavers = b.client_id.in_(leavers if found.erasure.scope == "client" else ())
    of_runs = _is_cut_off(t.cohorts.c.run_id.in_(run_ids))
    own = (b.federation_id == found.erasure.federation_id) & (b.status != "dropping")
    rows = await connection.execute(
        sa.select(b.id, b.origin, b.status, b.digest).where(own, is_left, of_leavers | of_runs)
    )
    artefacts = []
    for row in rows:
        kind: ArtefactKind = "step" if row.origin == "job" else "upload" if row.status == "stored" else "part"
        artefacts.append(FoundArtefact(kind, row.digest, row.id))
    return artefacts


async def _begun_by_operators(
    connection: AsyncConnection, found: ErasureRecord, purged: set[str]
) -> list[FoundArtefact]:
    """Uploads of the same bytes that operators have begun: they would be refused at their end."""
    b, parts = t.blobs.c, list[FoundArtefact]()
    own = (b.federation_id == found.erasure.federation_id) & (b.origin == "operator") & (b.status == "arriving")
    for some in batched(sorted(purged), BATCH):
        rows = await connection.execute(sa.select(b.id, b.digest).where(own, b.digest.in_(some)))
        parts += [FoundArtefact("part", row.digest, row.id) for row in rows]
    return parts


async def blobs_of(connection: AsyncConnection, found: ErasureRecord, artefacts: list[FoundArtefact]) -> list[UUID]:
    """The blobs that the artefacts are, whoever else has the same bytes. A model whose bytes a clean model of the same
    cohort and epoch has as well is that one's, too, and stays."""
    b, ids = t.blobs.c, set[UUID]()
    own = (b.federation_id == found.erasure.federation_id) & (b.status != "dropping")
    by_kind: dict[str, list[FoundArtefact]] = {}
    for artefact in artefacts:
        by_kind.setdefault(artefact.kind, []).append(artefact)
    updates = [a.row_id for a in by_kind.get("update", [])]
    for some in batched(updates, BATCH):
        of_task = sa.select(t.updates.c.task_id).where(t.updates.c.id.in_(some))
        ids |= set((await connection.execute(sa.select(b.id).where(own, b.origin_id.in_(of_task)))).scalars())
        ids |= set((await connection.execute(sa.select(b.id).where(own, b.origin_id.in_(some)))).scalars())  # copies
    jobs_and_blobs = [a.row_id for kind in ("step", "upload", "part") for a in by_kind.get(kind, [])]
    for some in batched(jobs_and_blobs, BATCH):
        ids |= set(
            (await connection.execute(sa.select(b.id).where(own, b.origin_id.in_(some) | b.id.in_(some)))).scalars()
        )
    models = [a for kind in ("checkpoint", "merge") for a in by_kind.get(kind, [])]
    ids |= await _blobs_of_models(connection, own, [a.row_id for a in models])
    gone = sorted({a.digest for a in (*models, *by_kind.get("step", []))})
    ids |= await _same_bytes_before_the_cut(connection, own, gone)
    ids |= await _blobs_of_calibrated(connection, own, updates)
    if found.erasure.scope == "client":
        of_leavers = b.client_id.in_([s.client_id for s in found.subjects])
        ids |= set((await connection.execute(sa.select(b.id).where(own, of_leavers))).scalars())
    return sorted(ids)


async def newest_epochs(
    connection: AsyncConnection, found: ErasureRecord, artefacts: list[FoundArtefact]
) -> dict[UUID, int]:
    """Of the cohorts in which something was derived from the leavers, the last epoch in which that was. Of those that
    the request cut, the one before its last cut: a method that gave up or whose audit failed had an epoch of its own.
    Also of those that it did not cut, as of merged models, or that had ended before. By rows that stay, so that an
    attempt after a crash finds the same."""
    epochs: dict[UUID, int] = {}
    for table, kinds in ((t.updates, ("update",)), (t.checkpoints, ("checkpoint", "merge")), (t.jobs, ("step",))):
        for ids in batched([a.row_id for a in artefacts if a.kind in kinds], BATCH):
            own = sa.select(table.c.cohort_id, sa.func.max(table.c.epoch)).where(table.c.id.in_(ids))
            for cohort_id, epoch in await connection.execute(own.group_by(table.c.cohort_id)):
                epochs[cohort_id] = max(epoch, epochs.get(cohort_id, epoch))
    return epochs | {affected.cohort_id: affected.epoch_after - 1 for affected in found.affected}


async def _blobs_of_models(
    connection: AsyncConnection, own: sa.ColumnElement[bool], model_ids: list[UUID | None]
) -> set[UUID]:
    b, c = t.blobs.c, t.checkpoints.c
    same = (c.cohort_id == b.cohort_id) & (c.epoch == b.epoch) & (c.digest == b.digest)
    ids: set[UUID] = set()
    for some in batched(model_ids, BATCH):
        mine = (
            sa.select(b.id).join(t.checkpoints, same).where(own, b.origin == "job", c.id.in_(some), ~_is_clean_model())
        )
        ids |= set((await connection.execute(mine)).scalars())
    return ids


def _is_clean_model() -> sa.ColumnElement[bool]:
    """A condition on a blob: it is that of a model which is served, of the same cohort and epoch."""
    b, clean = t.blobs.c, t.checkpoints.alias("clean")
    return sa.exists().where(
        clean.c.cohort_id == b.cohort_id,
        clean.c.epoch == b.epoch,
        clean.c.digest == b.digest,
        clean.c.superseded_by.is_(None),
        clean.c.stored,
    )


def _is_cut_off(*where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """A condition on a blob: it was made for an epoch of its cohort that is over, or its cohort has ended."""
    b, c = t.blobs.c, t.cohorts.c
    return sa.exists().where(c.id == b.cohort_id, (c.phase == "retired") | (b.epoch < c.epoch), *where)


async def _same_bytes_before_the_cut(
    connection: AsyncConnection, own: sa.ColumnElement[bool], gone: list[str]
) -> set[UUID]:
    """What kernels made of the same bytes in cohorts that were cut or had ended, and nobody published."""
    b = t.blobs.c
    ids: set[UUID] = set()
    for some in batched(gone, BATCH):
        mine = sa.select(b.id).where(own, b.origin == "job", b.digest.in_(some), _is_cut_off(), ~_is_clean_model())
        ids |= set((await connection.execute(mine)).scalars())
    return ids


async def _blobs_of_calibrated(
    connection: AsyncConnection, own: sa.ColumnElement[bool], update_ids: list[UUID | None]
) -> set[UUID]:
    """What was kept in place of updates."""
    b, c, u = t.blobs.c, t.contributions.c, t.updates.c
    ids: set[UUID] = set()
    for some in batched(update_ids, BATCH):
        mine = (
            sa.select(b.id)
            .join(t.updates, u.cohort_id == b.cohort_id)
            .join(t.contributions, (c.update_id == u.id) & (c.digest == b.digest))
            .where(own, b.origin == "job", u.id.in_(some))
        )
        ids |= set((await connection.execute(mine)).scalars())
    return ids


async def record(connection: AsyncConnection, erasure_id: UUID, artefacts: list[FoundArtefact]) -> None:
    """Add to the request's list what is new; what an earlier purge deleted stays in it."""
    a = t.artefacts.c
    mine = sa.select(a.kind, a.digest).where(a.erasure_id == erasure_id)
    known = {Artefact(*row) for row in await connection.execute(mine)}
    new = {Artefact(one.kind, one.digest): one for one in artefacts}
    rows = [
        {"erasure_id": erasure_id, **name._asdict(), "disposition": one.disposition, "reason": one.reason}
        for name, one in new.items()
        if name not in known
    ]
    if rows:
        await connection.execute(t.artefacts.insert(), rows)


async def mark_purged(connection: AsyncConnection, artefacts: list[FoundArtefact]) -> None:
    """The records of updates and models stay; they say from now on that their bytes are gone. Those of the history
    go."""
    for ids in batched([a.row_id for a in artefacts if a.kind == "update"], BATCH):
        await connection.execute(t.kept_updates.delete().where(t.kept_updates.c.update_id.in_(ids)))
        of_cohorts = sa.select(t.updates.c.cohort_id).where(t.updates.c.id.in_(ids))
        await warm.renew(connection, t.cohorts.c.id.in_(of_cohorts))
    for table, kinds in ((t.updates, ("update",)), (t.checkpoints, ("checkpoint", "merge"))):
        for ids in batched([a.row_id for a in artefacts if a.kind in kinds], BATCH):
            await connection.execute(table.update().where(table.c.id.in_(ids)).values(stored=False))


async def forget_seeds(connection: AsyncConnection, cohort_ids: list[UUID]) -> None:
    """Whoever knows the seed of a method's noise could take the noise off again."""
    j = t.jobs.c
    noisy = j.cohort_id.in_(cohort_ids) & j.kernel.in_(NOISY_KERNELS)
    await connection.execute(t.jobs.update().where(noisy).values(params={}))


async def clean_digests(connection: AsyncConnection, federation_id: UUID, listed: list[str]) -> set[str]:
    """The digests that a clean, stored artefact of the federation has as well."""
    own_runs = sa.select(t.runs.c.id).where(t.runs.c.federation_id == federation_id)
    clean: set[str] = set()
    for some in batched(listed, BATCH):
        for table in (t.updates, t.checkpoints):
            stored = sa.select(table.c.digest).where(table.c.stored, table.c.run_id.in_(own_runs))
            clean |= set((await connection.execute(stored.where(table.c.digest.in_(some)))).scalars())
        calibrated = (
            sa.select(t.contributions.c.digest)
            .join(t.updates, t.updates.c.id == t.contributions.c.update_id)
            .where(t.updates.c.stored, t.updates.c.run_id.in_(own_runs), t.contributions.c.digest.in_(some))
        )
        clean |= set((await connection.execute(calibrated)).scalars())
    return clean


def batched(values: list[V], size: int) -> Iterator[list[V]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


@dataclass(frozen=True, slots=True)
class Steps:
    num_steps: int
    num_replayable: int


async def replayable_steps(connection: AsyncConnection, head_ids: list[UUID]) -> Steps:
    """The aggregations and merges behind the given models, and how many of them can still be recomputed, also when
    retention has done what it has yet to do. They end where a method made a model of a purged one."""
    c, p = t.checkpoints.c, t.parents.c
    edges = sa.union_all(
        sa.select(c.id.label("child"), c.base_id.label("above")).where(c.base_id.is_not(None), c.kind != "forgotten"),
        sa.select(p.checkpoint_id.label("child"), p.parent_id.label("above")),
    ).subquery()
    behind = sa.select(c.id).where(c.id.in_(head_ids)).cte("behind", recursive=True)
    behind = behind.union(sa.select(edges.c.above).join(behind, edges.c.child == behind.c.id))
    will_be_dropped = sa.exists().where(
        t.IS_OPEN_JOB,
        t.jobs.c.kind.in_(("collect-updates", "keep-updates")),
        t.jobs.c.cohort_id == t.rounds.c.cohort_id,
        t.jobs.c.epoch >= t.rounds.c.epoch,
        t.jobs.c.params["up_to_round"].as_integer() >= t.rounds.c.number,
    )
    k = t.kept_updates.c
    is_kept = sa.exists().where(k.update_id == t.updates.c.id, k.status == "stored", k.digest == k.source)
    missing_update = (
        sa.select(t.contributions.c.checkpoint_id)
        .join(t.updates, t.updates.c.id == t.contributions.c.update_id)
        .outerjoin(t.rounds, t.rounds.c.id == t.updates.c.consumed_by)
        .where(t.contributions.c.checkpoint_id == c.id, ~t.updates.c.stored | (will_be_dropped & ~is_kept))
        .exists()
    )
    rows = await connection.execute(
        sa.select(c.id, missing_update.label("missing")).where(
            c.id.in_(sa.select(behind.c.id)), c.kind.not_in(("init", "forgotten"))
        )
    )
    found = rows.all()
    return Steps(len(found), sum(not row.missing for row in found))
