"""What is due or may go on: leases, deadlines, tasks to claim, runs and requests that wait. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import ENDED
from coordinator.engine.messages import DeadlinePassed, LeaseRanOut, Message
from coordinator.engine.work import MAX_BACKOFF
from coordinator.store import tables as t
from coordinator.store.rows import listed

DUE_AT_ONCE = 200
_most: sa.BindParameter[int] = sa.bindparam("most", type_=sa.Integer)
_LAPSED = (
    sa.select(t.tasks.c.id, t.tasks.c.lease_token, t.tasks.c.run_id)
    .where(t.IS_LEASED_TASK, t.tasks.c.due_at <= sa.bindparam("now"))
    .limit(_most)
)
_PASSED = (
    sa.select(t.rounds.c.id, t.rounds.c.run_id)
    .join(t.runs, t.runs.c.id == t.rounds.c.run_id)
    .where(t.rounds.c.status == "open", t.rounds.c.due_at <= sa.bindparam("now"), t.runs.c.status == "running")
    .limit(_most)
)


class Due(NamedTuple):
    """A message that nobody sends but the clock."""

    message: Message[Any]
    about: UUID
    owner: UUID
    """The run or the request that it belongs to."""


async def due_messages(connection: AsyncConnection, now: datetime, most: int = DUE_AT_ONCE) -> list[Due]:
    """Leases that ran out and deadlines that passed, in runs that are not paused; of each at `most` so many."""
    due = {"now": now, "most": most}
    lapsed = await connection.execute(_LAPSED, due)
    found = [Due(LeaseRanOut(row.id, row.lease_token), row.id, row.run_id) for row in lapsed]
    found += [Due(DeadlinePassed(row.id), row.id, row.run_id) for row in await connection.execute(_PASSED, due)]
    return found


_OPEN_RUNS = sa.select(t.runs.c.id, t.runs.c.spec).where(t.runs.c.status.not_in(ENDED))
_LEASED_BEYOND = sa.select(t.tasks.c.id, t.tasks.c.lease_token, t.tasks.c.run_id, t.tasks.c.due_at).where(
    t.IS_LEASED_TASK, t.tasks.c.due_at > sa.bindparam("end")
)


async def leases_from_ahead(connection: AsyncConnection, now: datetime) -> list[Due]:
    """Leases with more time left than they are long: they were taken or renewed while the clock was ahead. Those of a
    run that does not say how long they are end by themselves."""
    lengths = {row.id: row.spec.get("lease_s") for row in await connection.execute(_OPEN_RUNS)}
    ends = {run_id: now + timedelta(seconds=s) for run_id, s in lengths.items() if isinstance(s, int | float)}
    if not ends:
        return []
    beyond_the_shortest = await connection.execute(_LEASED_BEYOND, {"end": min(ends.values())})
    found = [row for row in beyond_the_shortest if row.run_id in ends and row.due_at > ends[row.run_id]]
    return [Due(LeaseRanOut(row.id, row.lease_token), row.id, row.run_id) for row in found[:DUE_AT_ONCE]]


_CLAIMABLE = (
    sa.select(t.tasks.c.client_id, t.tasks.c.run_id)
    .join(t.runs, t.runs.c.id == t.tasks.c.run_id)
    .where(
        t.tasks.c.client_id.in_(sa.bindparam("client_ids", expanding=True)),
        t.IS_CLAIMABLE_OR_LEASED,
        t.tasks.c.status == "ready",
        t.tasks.c.due_at.is_(None)
        | (t.tasks.c.due_at <= sa.bindparam("now"))
        | (t.tasks.c.due_at > sa.bindparam("ahead", type_=t.tasks.c.due_at.type)),
        t.runs.c.status == "running",
    )
    .union(
        sa.select(t.clients.c.id, sa.null().label("run_id")).where(
            t.clients.c.id.in_(sa.bindparam("client_ids", expanding=True)),
            t.clients.c.exclusions.is_distinct_from(t.clients.c.exclusions_acked),
        )
    )
)


async def claimable_clients(
    connection: AsyncConnection, client_ids: Sequence[UUID], now: datetime, without: Collection[UUID] = ()
) -> list[UUID]:
    """Which of these clients have a task they could claim now in a run that is not left out, or samples to leave out
    first."""
    found = await connection.execute(
        _CLAIMABLE, {"client_ids": listed(client_ids), "now": now, "ahead": now + MAX_BACKOFF}
    )
    return list({row.client_id: None for row in found if row.run_id not in without})


_TO_CLAIM_FROM = (
    sa.select(t.tasks.c.run_id)
    .join(t.runs, t.runs.c.id == t.tasks.c.run_id)
    .where(
        t.tasks.c.client_id == sa.bindparam("client"),
        t.IS_CLAIMABLE_OR_LEASED,
        t.tasks.c.status == "ready",
        t.runs.c.status == "running",
    )
    .distinct()
)


async def runs_to_claim_from(connection: AsyncConnection, client_id: UUID) -> list[UUID]:
    """Running runs in which a task is ready for the client."""
    return sorted((await connection.execute(_TO_CLAIM_FROM, {"client": client_id})).scalars())


_HELD_FOR_STORAGE = sa.select(t.runs.c.id).where(t.runs.c.status == "paused", t.runs.c.hold == "storage-full")


async def runs_held_for_storage(connection: AsyncConnection) -> list[UUID]:
    return list((await connection.execute(_HELD_FOR_STORAGE)).scalars())


_BUSY = t.cohorts.c.phase.in_(("starting", "asking", "computing"))
_IN_LOCKSTEP = (
    sa.select(t.cohorts.c.run_id)
    .join(t.runs, t.runs.c.id == t.cohorts.c.run_id)
    .where(t.cohorts.c.is_lockstep, t.runs.c.status == "running")
    .group_by(t.cohorts.c.run_id, t.cohorts.c.group)
    .having(sa.func.count().filter(_BUSY) == 0, sa.func.count().filter(t.cohorts.c.phase == "waiting") > 0)
)


async def runs_in_lockstep(connection: AsyncConnection) -> list[UUID]:
    """Running runs with a group whose cohorts all wait for their next round."""
    return sorted(set((await connection.execute(_IN_LOCKSTEP)).scalars()))


_UNDER_WAY = sa.select(t.erasures.c.id).where(
    t.erasures.c.status.in_(("fenced", "executing", "requires_action"))
    | ((t.erasures.c.status == "received") & t.erasures.c.reason.is_not(None))  # until its workers have confirmed
)
_CONCERNED = (
    sa.select(t.lines.c.erasure_id, t.lines.c.run_id)
    .where(t.lines.c.erasure_id.in_(sa.bindparam("keys", expanding=True)))
    .distinct()
    .subquery()
)
_COHORTS_CONCERNED = (
    sa.select(_CONCERNED.c.erasure_id, sa.func.count().label("num_cohorts"))
    .join(t.cohorts, t.cohorts.c.run_id == _CONCERNED.c.run_id)
    .group_by(_CONCERNED.c.erasure_id)
)


async def erasures_under_way(connection: AsyncConnection) -> dict[UUID, int]:
    """With the number of cohorts in all runs concerned."""
    ids = list((await connection.execute(_UNDER_WAY)).scalars())
    if not ids:
        return {}
    counted = await connection.execute(_COHORTS_CONCERNED, {"keys": listed(ids)})
    return dict.fromkeys(ids, 0) | {row.erasure_id: row.num_cohorts for row in counted}
