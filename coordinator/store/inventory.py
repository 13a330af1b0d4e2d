"""Everything that was derived from a client and is, or was, stored; and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Cohort, Erasure, Line, Run, Subject
from coordinator.store import tables as t
from coordinator.store.rows import fetch
from services.core import digests


@dataclass(frozen=True, slots=True)
class Found:
    """An artefact. `row_id` names the update or checkpoint; credentials are named by the digest of their hash."""

    kind: Literal["update", "checkpoint", "merge", "key"]
    row_id: UUID
    digest: str


@dataclass(frozen=True, slots=True)
class Dossier:
    """A request with everything that its purge and certificate are made of."""

    erasure: Erasure
    subjects: list[Subject]
    lines: list[Line]
    cohorts: dict[UUID, Cohort]
    runs: dict[UUID, Run]


async def dossier(connection: AsyncConnection, erasure_id: UUID) -> Dossier:
    (erasure,) = await fetch(connection, Erasure, t.erasures.c.id == erasure_id)
    subjects = await fetch(connection, Subject, t.subjects.c.erasure_id == erasure_id)
    lines = await fetch(connection, Line, t.lines.c.erasure_id == erasure_id)
    run_ids = {line.run_id for line in lines}
    cohorts = await fetch(connection, Cohort, t.cohorts.c.run_id.in_(run_ids))
    runs = await fetch(connection, Run, t.runs.c.id.in_(run_ids))
    return Dossier(
        erasure=erasure,
        subjects=sorted(subjects, key=lambda s: s.name),
        lines=sorted(lines, key=lambda one: (one.run_id, one.cohort_name)),
        cohorts={c.id: c for c in cohorts},
        runs={r.id: r for r in runs},
    )


async def inventory(connection: AsyncConnection, found: Dossier) -> list[Found]:
    """Closed: the leavers' updates, every model with a leaver in its ancestry, every update that somebody trained from
    such a model, and the leavers' credentials. The same list before and after the purge.

    An update that is in a clean model is clean: it was trained from bytes that came out the same without the leaver."""
    erasure_id, client_ids = found.erasure.id, [s.client_id for s in found.subjects]
    tainted = sa.select(t.checkpoints.c.digest).where(t.checkpoints.c.superseded_by == erasure_id)
    cohort_ids = [line.cohort_id for line in found.lines]
    in_clean_model = (
        sa.select(t.contributions.c.update_id)
        .join(t.checkpoints, t.checkpoints.c.id == t.contributions.c.checkpoint_id)
        .where(t.contributions.c.update_id == t.updates.c.id, t.checkpoints.c.superseded_by.is_(None))
        .exists()
    )
    of_lines = t.updates.c.cohort_id.in_(cohort_ids) & ~in_clean_model
    trained_from = of_lines & t.updates.c.base_digest.in_(tainted)
    own = t.updates.c.client_id.in_(client_ids)
    updates = sa.select(t.updates.c.id, t.updates.c.digest).where(own | trained_from, t.updates.c.digest.is_not(None))
    models = sa.select(t.checkpoints.c.id, t.checkpoints.c.digest, t.checkpoints.c.kind).where(
        t.checkpoints.c.superseded_by == erasure_id
    )
    keys = sa.select(t.credentials.c.id, t.credentials.c.secret_hash).where(t.credentials.c.client_id.in_(client_ids))
    artefacts = [Found("update", row.id, row.digest) for row in await connection.execute(updates)]
    artefacts += [
        Found("merge" if row.kind == "merge" else "checkpoint", row.id, row.digest)
        for row in await connection.execute(models)
    ]
    if found.erasure.scope == "client":
        hashes = [(row.id, bytes.fromhex(row.secret_hash)) for row in await connection.execute(keys)]
        artefacts += [Found("key", row_id, digests.of_bytes(secret_hash)) for row_id, secret_hash in hashes]
    return sorted(artefacts, key=lambda a: (a.kind, a.digest, a.row_id))


async def purge(connection: AsyncConnection, found: Dossier, artefacts: list[Found]) -> list[str]:
    """Forget the records' bytes; returns the digests of blobs that nothing clean refers to: those are to be deleted."""
    updates = [a.row_id for a in artefacts if a.kind == "update"]
    models = [a.row_id for a in artefacts if a.kind in ("checkpoint", "merge")]
    await connection.execute(t.updates.update().where(t.updates.c.id.in_(updates)).values(stored=False))
    await connection.execute(t.checkpoints.update().where(t.checkpoints.c.id.in_(models)).values(stored=False))
    unused = sorted({a.digest for a in artefacts if a.kind != "key"} - await clean_digests(connection, artefacts))
    gone = (t.blobs.c.federation_id == found.erasure.federation_id) & t.blobs.c.digest.in_(unused)
    await connection.execute(t.blobs.delete().where(gone))
    return unused


async def clean_digests(connection: AsyncConnection, artefacts: list[Found]) -> set[str]:
    """Digests in the list whose bytes are also those of a clean, stored artefact."""
    digests_ = {a.digest for a in artefacts}
    used = sa.union(
        sa.select(t.updates.c.digest).where(t.updates.c.digest.in_(digests_), t.updates.c.stored),
        sa.select(t.checkpoints.c.digest).where(t.checkpoints.c.digest.in_(digests_), t.checkpoints.c.stored),
    )
    return set((await connection.execute(used)).scalars())


@dataclass(frozen=True, slots=True)
class Steps:
    num_steps: int
    num_replayable: int


async def replayable_steps(connection: AsyncConnection, head_ids: list[UUID]) -> Steps:
    """The aggregations and merges behind the given models, and how many of them can still be recomputed."""
    c, p = t.checkpoints.c, t.parents.c
    edges = sa.union_all(
        sa.select(c.id.label("child"), c.base_id.label("above")).where(c.base_id.is_not(None)),
        sa.select(p.checkpoint_id.label("child"), p.parent_id.label("above")),
    ).subquery()
    behind = sa.select(c.id).where(c.id.in_(head_ids)).cte("behind", recursive=True)
    behind = behind.union(sa.select(edges.c.above).join(behind, edges.c.child == behind.c.id))
    missing_update = (
        sa.select(t.contributions.c.checkpoint_id)
        .join(t.updates, t.updates.c.id == t.contributions.c.update_id)
        .where(t.contributions.c.checkpoint_id == c.id, ~t.updates.c.stored)
        .exists()
    )
    rows = await connection.execute(
        sa.select(c.id, missing_update.label("missing")).where(c.id.in_(sa.select(behind.c.id)), c.kind != "init")
    )
    found = rows.all()
    return Steps(len(found), sum(not row.missing for row in found))
