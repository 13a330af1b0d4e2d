"""Which updates a run's retention no longer keeps, and giving them up."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import blobs, references
from coordinator.store import tables as t
from coordinator.store.warm import cold

_COLLECTIONS = (
    sa.select(t.jobs.c.id, t.jobs.c.params)
    .where(
        t.jobs.c.cohort_id == sa.bindparam("cohort"),
        t.jobs.c.epoch == sa.bindparam("epoch"),
        t.jobs.c.kind == "collect-updates",
        t.IS_OPEN_JOB,
        t.jobs.c.status == "ready",
    )
    .with_for_update(skip_locked=True)
)
_DONE = t.jobs.update().where(t.jobs.c.id.in_(sa.bindparam("jobs", expanding=True))).values(status="done")


async def take_collections(connection: AsyncConnection, cohort_id: UUID, epoch: int) -> list[int]:
    """The retention of later rounds, for whoever carries out an earlier one: up to which round each goes."""
    found = await connection.execute(_COLLECTIONS, {"cohort": cohort_id, "epoch": epoch})
    waiting = [(row.id, row.params) for row in found]
    if waiting:
        await connection.execute(_DONE, {"jobs": [job_id for job_id, _ in waiting]})
    return [params["up_to_round"] for _, params in waiting]


_kept = t.kept_updates.c
_is_kept_otherwise = sa.exists().where(
    _kept.update_id == t.updates.c.id,
    (_kept.status == "sealing") | ((_kept.status == "stored") & (_kept.digest == _kept.source)),
)
_COLLECTABLE = (
    sa.select(t.updates.c.id, t.updates.c.digest)
    .join(t.rounds, t.rounds.c.id == t.updates.c.consumed_by)
    .where(
        t.updates.c.cohort_id == sa.bindparam("cohort"),
        t.updates.c.stored,
        t.updates.c.digest.is_not(None),
        t.rounds.c.epoch <= sa.bindparam("epoch"),
        t.rounds.c.number <= sa.bindparam("up_to_round"),
        ~_is_kept_otherwise,
    )
)


async def updates_to_collect(
    connection: AsyncConnection, cohort_id: UUID, epoch: int, up_to_round: int
) -> list[tuple[UUID, str]]:
    """Stored updates of a cohort that its retention policy no longer keeps: (update id, digest). What came after an
    erasure is not judged by the rounds before it. One that the history keeps as it is stays, and one that is being
    copied, maybe by another process, until it is."""
    wanted = {"cohort": cohort_id, "epoch": epoch, "up_to_round": up_to_round}
    found = await connection.execute(_COLLECTABLE, wanted)
    return [(row.id, row.digest) for row in found]


_ids: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
_DROP_UPDATES = cold(  # those that wait in a buffer are remembered, but not those that are consumed
    t.updates.update().where(t.updates.c.id.in_(_ids), t.updates.c.status == "consumed").values(stored=False)
)
_made_of = t.contributions.c
_CALIBRATED = sa.select(_made_of.digest).where(_made_of.update_id.in_(_ids), _made_of.digest.is_not(None))


async def forget_updates(connection: AsyncConnection, federation_id: UUID, found: list[tuple[UUID, str]]) -> None:
    """Mark updates as no longer stored and give up their blobs, and what was kept in their place."""
    ids = [update_id for update_id, _ in found]
    calibrated = set((await connection.execute(_CALIBRATED, {"ids": ids})).scalars())
    await connection.execute(_DROP_UPDATES, {"ids": ids})
    await blobs.drop(connection, await blobs.of_updates(connection, ids))
    await references.release(connection, federation_id, calibrated)
