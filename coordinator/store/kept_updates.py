"""The history of updates: which are kept beyond retention, as they are or as lossy copies, and which were dropped."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED, Blob, Cohort, Run
from coordinator.store import blobs
from coordinator.store import tables as t
from coordinator.store.rows import fetch_by
from services.core.ids import uuid7
from services.history.spec import UpdateHistory
from services.history.store import Kept

k = t.kept_updates.c
SOURCE = sa.func.coalesce(t.contributions.c.digest, t.updates.c.digest)
"""An update as it was added to a model."""
IN_MODELS = t.contributions.join(t.checkpoints, t.checkpoints.c.id == t.contributions.c.checkpoint_id).join(
    t.updates, t.updates.c.id == t.contributions.c.update_id
)
IS_LOSSY = k.digest != k.source
"""A condition on a kept update: it is a copy, and not the update as it was sent."""
LIVE = t.checkpoints.c.superseded_by.is_(None)
IS_COPIED = sa.exists().where(k.update_id == t.updates.c.id, k.source == SOURCE, k.status == "stored")
"""A condition on an update in a model: it has a sealed copy."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cohort whose updates are kept."""

    federation_id: UUID
    cohort_id: UUID
    policy: UpdateHistory | None
    is_unlearning: bool
    """A method is at work and may read any update."""


@dataclass(frozen=True, slots=True)
class UpdateToKeep:
    """An update that the policy keeps and that has no sealed copy yet."""

    run_id: UUID
    cohort_id: UUID
    round: int
    update_id: UUID
    client_id: UUID
    client_name: str
    base_round: int
    base_digest: str
    source: str

    epoch: int
    """The epoch of the task that it answers."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A lossy copy, and how it is read."""

    source: str
    digest: str
    policy: UpdateHistory
    client_id: UUID
    context: bytes
    """What version 0.1 bound it to."""


async def places(connection: AsyncConnection, cohort_ids: Collection[UUID]) -> list[Place]:
    cohorts = await fetch_by(connection, Cohort, t.cohorts.c.id, cohort_ids)
    runs = {run.id: run for run in await fetch_by(connection, Run, t.runs.c.id, {c.run_id for c in cohorts})}
    return [
        Place(runs[c.run_id].federation_id, c.id, runs[c.run_id].spec.history.updates, c.unlearning is not None)
        for c in cohorts
    ]


_HOLD = sa.select(t.cohorts.c.id).where(t.cohorts.c.id == sa.bindparam("cohort")).with_for_update()


async def hold(connection: AsyncConnection, cohort_id: UUID) -> None:
    """Wait for messages about the cohort that are being decided, and for what is being kept of its updates; let neither
    begin until the transaction ends. Whoever gives up its updates holds it before looking: on Postgres a statement sees
    what was committed before it began, and a fence or the history may begin to need them."""
    await connection.execute(_HOLD, {"cohort": cohort_id})


async def cohorts_with_copies(connection: AsyncConnection) -> list[UUID]:
    return list((await connection.execute(sa.select(k.cohort_id).where(k.status == "stored").distinct())).scalars())


async def wanted(connection: AsyncConnection, cohort_id: UUID, policy: UpdateHistory) -> list[UpdateToKeep]:
    """Updates to be kept, of the models that may be served, the oldest first. What was dropped once is not kept again.
    Models from before the newest chore that was done need no second look."""
    u, c, j = t.updates.c, t.checkpoints.c, t.jobs.c
    done = sa.select(sa.func.max(j.created_at)).where(
        j.cohort_id == cohort_id, j.kind == "keep-updates", j.status == "done"
    )
    since = (await connection.execute(done)).scalar()
    is_settled = sa.exists().where(k.update_id == u.id, k.source == SOURCE, k.status != "sealing")
    statement = (
        sa.select(u.run_id, c.cohort_id, c.round, u.id.label("update_id"), u.client_id, u.client_name)
        .add_columns(u.base_round, u.base_digest, SOURCE.label("source"), u.epoch)
        .select_from(IN_MODELS.join(t.clients, t.clients.c.id == u.client_id))
        .where(c.cohort_id == cohort_id, LIVE, (c.round - 1) % policy.interval == 0)
        .where(u.stored, t.clients.c.status != "erased", SOURCE.is_not(None), ~is_settled)
        .order_by(c.round, u.client_name)
    )
    if since is not None:
        statement = statement.where(c.created_at >= since)
    rows = await connection.execute(statement)
    return list({(row.update_id, row.source): UpdateToKeep(**row._mapping) for row in rows}.values())


async def announce(
    connection: AsyncConnection, copies: Sequence[tuple[UpdateToKeep, Kept]], policy: UpdateHistory, now: datetime
) -> list[tuple[UpdateToKeep, Kept]]:
    """Note what is kept, or about to be; returns what may be. What was purged meanwhile, or kept by another process, is
    left out."""
    ids = [one.update_id for one, _ in copies]
    places = sa.select(t.cohorts.c.id).join(t.runs).where(t.cohorts.c.id.in_({one.cohort_id for one, _ in copies}))
    await connection.execute(places.with_for_update(read=True, key_share=True))  # as the new rows will, but in order
    rows = await connection.execute(
        sa.select(t.updates.c.id).where(t.updates.c.id.in_(ids), t.updates.c.stored).with_for_update()
    )
    stored = set(rows.scalars())
    found = await connection.execute(sa.select(t.kept_updates).where(k.update_id.in_(ids)))
    known = {(row.update_id, row.source): row for row in found}
    announced = []
    for one, copy in copies:
        before = known.get((one.update_id, one.source))
        if one.update_id not in stored or (before is not None and before.status != "sealing"):
            continue
        values = _values(one, copy, policy, now)
        if before is None:
            await connection.execute(t.kept_updates.insert().values(id=uuid7(now, os.urandom(10)), **values))
        else:
            await connection.execute(t.kept_updates.update().where(k.id == before.id).values(**values))
        announced.append((one, copy))
    return announced


def _values(one: UpdateToKeep, copy: Kept, policy: UpdateHistory, now: datetime) -> dict[str, Any]:
    return {
        **{name: getattr(one, name) for name in UpdateToKeep.__slots__ if name != "epoch"},
        **{name: getattr(copy, name) for name in ("digest", "num_bytes", "largest_error", "relative_error")},
        "dtype": policy.dtype,
        "compression": policy.compression,
        "status": ("stored" if copy.digest == one.source else "sealing") if copy.num_bytes else "dropped",
        "kept_at": now,
    }


async def confirm(connection: AsyncConnection, blob: Blob) -> bool:
    """The bytes of a copy are stored; False when nobody wants them any more."""
    mine = (k.update_id == blob.origin_id) & (k.digest == blob.digest) & (k.status == "sealing")
    changed = await connection.execute(t.kept_updates.update().where(mine).values(status="stored"))
    if changed.rowcount:
        own = (t.blobs.c.id == blob.id) & (t.blobs.c.status == "arriving")
        await connection.execute(t.blobs.update().where(own).values(status="stored", num_bytes=blob.num_bytes))
    return bool(changed.rowcount)


async def are_being_sealed(connection: AsyncConnection, update_ids: Collection[UUID]) -> bool:
    mine = k.update_id.in_(update_ids) & (k.status == "sealing")
    return (await connection.execute(sa.select(k.id).where(mine).limit(1))).first() is not None


# --- thinning ---------------------------------------------------------------------------------------------------------


async def is_being_erased(connection: AsyncConnection, cohort_id: UUID) -> bool:
    """Whether a request that is not settled cut the cohort: its method may walk through the history, and its
    certificate accounts for what is there."""
    statement = (
        sa.select(t.lines.c.erasure_id)
        .join(t.erasures, t.erasures.c.id == t.lines.c.erasure_id)
        .where(t.lines.c.cohort_id == cohort_id, t.erasures.c.status.not_in(SETTLED))
    )
    return (await connection.execute(statement.limit(1))).first() is not None


IN_LIVE_MODEL = (
    sa.select(t.contributions.c.update_id)
    .select_from(IN_MODELS)
    .where(t.contributions.c.update_id == k.update_id, k.source == SOURCE, LIVE)
    .correlate(t.kept_updates)
    .exists()
)


async def bytes_by_round(connection: AsyncConnection, cohort_id: UUID) -> dict[int, int]:
    """The bytes of copies of what is in models that may be served, by round."""
    statement = (
        sa.select(k.round, sa.func.sum(k.num_bytes).label("num_bytes"))
        .where(k.cohort_id == cohort_id, k.status == "stored", IN_LIVE_MODEL)
        .group_by(k.round)
    )
    return {row.round: int(row.num_bytes) for row in await connection.execute(statement)}


async def drop(connection: AsyncConnection, cohort_id: UUID, rounds: Collection[int]) -> None:
    """Forget the copies of these rounds, and those of what is in no model any more. Of an update that is kept as it is,
    retention decides from now on."""
    superfluous = (k.cohort_id == cohort_id) & (k.status == "stored") & (k.round.in_(rounds) | ~IN_LIVE_MODEL)
    rows = (await connection.execute(sa.select(k.id, k.update_id, k.digest).where(superfluous))).all()
    if not rows:
        return
    await connection.execute(t.kept_updates.update().where(k.id.in_([r.id for r in rows])).values(status="dropped"))
    await blobs.drop(connection, await copies_of(connection, [row.update_id for row in rows]))


async def copies_of(connection: AsyncConnection, update_ids: Collection[UUID]) -> list[UUID]:
    """The blobs of copies that no row of the history names any more."""
    b = t.blobs.c
    is_kept = sa.exists().where(k.update_id == b.origin_id, k.digest == b.digest, k.status != "dropped")
    own = (b.origin == "copy") & b.origin_id.in_(update_ids) & (b.status != "dropping") & ~is_kept
    return list((await connection.execute(sa.select(b.id).where(own))).scalars())


# --- reading ----------------------------------------------------------------------------------------------------------


async def copied(connection: AsyncConnection, update_ids: Collection[UUID]) -> dict[UUID, frozenset[str]]:
    """What each update has copies of."""
    rows = await connection.execute(
        sa.select(k.update_id, k.source).where(k.update_id.in_(update_ids), k.status == "stored")
    )
    found: dict[UUID, frozenset[str]] = {}
    for row in rows:
        found[row.update_id] = found.get(row.update_id, frozenset()) | {row.source}
    return found


async def copies(connection: AsyncConnection, federation_id: UUID, sources: Collection[str]) -> dict[str, Copy]:
    """The copies, by what they are copies of."""
    statement = (
        sa.select(t.kept_updates)
        .join(t.runs, t.runs.c.id == k.run_id)
        .where(t.runs.c.federation_id == federation_id, k.source.in_(sources), k.status == "stored", IS_LOSSY)
    )
    return {row.source: copy_of(row) for row in await connection.execute(statement)}


def copy_of(row: Any) -> Copy:
    """The copy that a row of the history describes."""
    policy = UpdateHistory(dtype=row.dtype, compression=row.compression)
    context = f"{row.cohort_id}/{row.round}/{row.update_id}/{row.source}".encode()
    return Copy(row.source, row.digest, policy, row.client_id, context)
