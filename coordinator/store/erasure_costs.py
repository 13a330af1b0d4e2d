"""What cohorts have cost so far and what is kept of it: the figures that erasures are planned by. Reads only."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Archive, Traffic
from coordinator.store import kept_updates
from coordinator.store import tables as t


async def traffic(
    connection: AsyncConnection, cohort_ids: Collection[UUID], leavers: Collection[UUID]
) -> dict[UUID, Traffic]:
    """What each cohort has cost; cohorts that never published an aggregate are left out."""
    rounds = await _rounds(connection, cohort_ids)
    updates = await _updates(connection, cohort_ids, leavers)
    models = await _model_bytes(connection, cohort_ids)
    found: dict[UUID, Traffic] = {}
    for cohort_id, num_rounds in rounds.items():
        num_updates, update_bytes = updates.get(cohort_id, (0, None))
        model_bytes = models.get(cohort_id, 0.0)
        moved = model_bytes + (model_bytes if update_bytes is None else update_bytes)
        found[cohort_id] = Traffic(updates_per_round=num_updates / num_rounds, bytes_per_update=moved)
    return found


async def archives(
    connection: AsyncConnection, run_ids: Collection[UUID], leavers: Collection[UUID]
) -> dict[UUID, Archive]:
    """What is kept of each checkpoint that may be served; models without contributions are left out."""
    c, u = t.contributions.c, t.updates.c
    of_others = c.client_id.not_in(leavers)
    statement = (
        sa.select(
            c.checkpoint_id,
            sa.func.count().filter(of_others).label("num_others"),
            sa.func.count().filter(of_others & (u.stored | kept_updates.IS_COPIED)).label("num_stored"),
            sa.func.sum(c.weight).label("weight"),
        )
        .join(t.updates, u.id == c.update_id)
        .join(t.checkpoints, t.checkpoints.c.id == c.checkpoint_id)
        .where(t.checkpoints.c.run_id.in_(run_ids), t.checkpoints.c.superseded_by.is_(None))
        .group_by(c.checkpoint_id)
    )
    rows = await connection.execute(statement)
    return {row.checkpoint_id: Archive(row.num_others, row.num_stored, row.weight) for row in rows}


async def _rounds(connection: AsyncConnection, cohort_ids: Collection[UUID]) -> dict[UUID, int]:
    c = t.checkpoints.c
    statement = (
        sa.select(c.cohort_id, sa.func.count().label("num"))
        .where(c.cohort_id.in_(cohort_ids), c.kind == "aggregate")
        .group_by(c.cohort_id)
    )
    return {row.cohort_id: row.num for row in await connection.execute(statement)}


async def _updates(
    connection: AsyncConnection, cohort_ids: Collection[UUID], leavers: Collection[UUID]
) -> dict[UUID, tuple[int, float | None]]:
    """Updates by others that were aggregated, and their mean size; None where only updates of 0.1 were, which did not
    note theirs."""
    u = t.updates.c
    statement = (
        sa.select(u.cohort_id, sa.func.count().label("num"), sa.func.avg(u.num_bytes).label("bytes"))
        .join(t.contributions, t.contributions.c.update_id == u.id)
        .where(u.cohort_id.in_(cohort_ids), u.client_id.not_in(leavers))
        .group_by(u.cohort_id)
    )
    rows = await connection.execute(statement)
    return {row.cohort_id: (row.num, None if row.bytes is None else float(row.bytes)) for row in rows}


async def _model_bytes(connection: AsyncConnection, cohort_ids: Collection[UUID]) -> dict[UUID, float]:
    """The size of each cohort's head."""
    c, b = t.cohorts.c, t.blobs.c
    is_head = (b.federation_id == t.runs.c.federation_id) & (b.digest == c.head_digest) & (b.status == "stored")
    num_bytes = sa.select(b.num_bytes).where(is_head).limit(1).scalar_subquery()  # thousands may have the same bytes
    statement = sa.select(c.id, num_bytes.label("num_bytes")).join(t.runs, t.runs.c.id == c.run_id)
    rows = await connection.execute(statement.where(c.id.in_(cohort_ids)))
    return {row.id: float(row.num_bytes) for row in rows if row.num_bytes is not None}
