"""The outbox and the clockwork: jobs to lease, leases and deadlines that are due."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Delivery, Job
from coordinator.engine.messages import DeadlinePassed, LeaseRanOut, Message
from coordinator.engine.work import MAX_BACKOFF
from coordinator.store import blobs, references
from coordinator.store import tables as t
from coordinator.store.prepared import prepared
from coordinator.store.rows import to_entity

SHORTEST_LEASE_S: Final = 30.0
_now = sa.bindparam("now", type_=t.jobs.c.due_at.type)
_AHEAD = (t.jobs.c.kind != "notify") & (t.jobs.c.due_at > sa.bindparam("ahead", type_=t.jobs.c.due_at.type))
"""Further off than any lease or pause reaches: it was set while the clock was ahead, and would last until then."""
_DUE = (t.jobs.c.due_at <= _now) | _AHEAD
_FREE = (t.jobs.c.status == "ready") & (t.jobs.c.due_at.is_(None) | _DUE)
_ABANDONED = (t.jobs.c.status == "leased") & _DUE
_WANTED = (t.runs.c.status == "running") & (t.cohorts.c.epoch == t.jobs.c.epoch)
_OLDEST = (
    sa.select(t.jobs.c.id)
    .outerjoin(t.runs, t.runs.c.id == t.jobs.c.run_id)
    .outerjoin(t.cohorts, t.cohorts.c.id == t.jobs.c.cohort_id)
    .where(
        t.jobs.c.kind.in_(sa.bindparam("kinds", expanding=True)),
        t.IS_OPEN_JOB,
        _FREE | _ABANDONED,
        _WANTED | (t.jobs.c.kind != "kernel"),
    )
    .order_by(t.jobs.c.kind != "fence", t.jobs.c.created_at, t.jobs.c.id)
    .limit(1)
    .with_for_update(skip_locked=True, of=t.jobs)
)
_TAKE = (
    t.jobs.update()
    .where(t.jobs.c.id == _OLDEST.scalar_subquery())
    .values(
        status="leased",
        lease_token=sa.bindparam("token"),
        due_at=sa.bindparam("until", type_=t.jobs.c.due_at.type),
        attempt=t.jobs.c.attempt + 1,
    )
)
_LEASE = prepared(_TAKE.returning(t.jobs))
_LEASE_UNREAD = prepared(_TAKE.returning(t.jobs.c.id, t.jobs.c.num_failures))


async def lease_job(
    connection: AsyncConnection, kinds: Sequence[str], now: datetime, lease_s: float, token: str
) -> Job | None:
    """Take the oldest job that is ready or whose holder went silent, a fence before all others. Kernels of a paused or
    fenced line stay put."""
    leased = {"kinds": list(kinds), "now": now, "token": token, "until": now + timedelta(seconds=lease_s)}
    leased["ahead"] = _beyond(now, lease_s)
    row = (await connection.execute(_LEASE, leased)).first()
    return to_entity(Job, row) if row is not None else None


def _beyond(now: datetime, lease_s: float) -> datetime:
    """Twice a lease from now on: replicas may differ a little in how long theirs are."""
    return now + timedelta(seconds=2 * max(lease_s, SHORTEST_LEASE_S))


class Unread(NamedTuple):
    """A leased job whose row nobody could read."""

    id: UUID
    num_failures: int


async def lease_unread(
    connection: AsyncConnection, kinds: Sequence[str], now: datetime, lease_s: float, token: str
) -> Unread | None:
    """Like `lease_job`, for when the row that is next cannot be read: what is needed to set it aside."""
    leased = {"kinds": list(kinds), "now": now, "token": token, "until": now + timedelta(seconds=lease_s)}
    leased["ahead"] = _beyond(now, lease_s)
    row = (await connection.execute(_LEASE_UNREAD, leased)).first()
    return Unread(row.id, row.num_failures) if row is not None else None


_OWN = (t.jobs.c.id == sa.bindparam("job")) & (t.jobs.c.lease_token == sa.bindparam("token"))
_HELD = t.jobs.update().where(_OWN, t.jobs.c.status == "leased")
_RENEW = prepared(_HELD.values(due_at=sa.bindparam("until", type_=t.jobs.c.due_at.type)))
_RETURN = prepared(
    _HELD.values(
        status="ready",
        due_at=sa.bindparam("until", type_=t.jobs.c.due_at.type),
        num_failures=t.jobs.c.num_failures + sa.bindparam("failures", type_=sa.Integer),
        error=sa.bindparam("error"),
    )
)
_FINISH = prepared(t.jobs.update().where(_OWN).values(status="done", due_at=None))


async def renew_job(connection: AsyncConnection, job_id: UUID, token: str, until: datetime) -> bool:
    """Keep a long kernel's lease; False when somebody else has the job or nobody wants it any more."""
    return bool((await connection.execute(_RENEW, {"job": job_id, "token": token, "until": until})).rowcount)


async def return_job(
    connection: AsyncConnection, job_id: UUID, token: str, until: datetime, error: str, *, is_failure: bool
) -> None:
    """Give a job back that could not be carried out; it is not leased again before `until`."""
    returned = {"job": job_id, "token": token, "until": until, "error": error, "failures": int(is_failure)}
    await connection.execute(_RETURN, returned)


_HURRY = prepared(
    t.jobs.update()
    .where(
        t.jobs.c.kind.in_(sa.bindparam("kinds", expanding=True)),
        t.IS_OPEN_JOB,
        t.jobs.c.status == "ready",
        t.jobs.c.due_at > sa.bindparam("now"),
    )
    .values(due_at=sa.bindparam("now", type_=t.jobs.c.due_at.type))
)


async def hurry_jobs(connection: AsyncConnection, kinds: Sequence[str], now: datetime) -> None:
    """Try again at once what waits for another attempt: its cause is gone."""
    await connection.execute(_HURRY, {"kinds": list(kinds), "now": now})


async def finish_chore(connection: AsyncConnection, job_id: UUID, token: str) -> None:
    await connection.execute(_FINISH, {"job": job_id, "token": token})


DUE_AT_ONCE = 200
_most: sa.BindParameter[int] = sa.bindparam("most", type_=sa.Integer)
_LAPSED = prepared(
    sa.select(t.tasks.c.id, t.tasks.c.lease_token, t.tasks.c.run_id)
    .where(t.IS_LEASED_TASK, t.tasks.c.due_at <= sa.bindparam("now"))
    .limit(_most)
)
_PASSED = prepared(
    sa.select(t.rounds.c.id, t.rounds.c.run_id)
    .join(t.runs, t.runs.c.id == t.rounds.c.run_id)
    .where(t.rounds.c.status == "open", t.rounds.c.due_at <= sa.bindparam("now"), t.runs.c.status == "running")
    .limit(_most)
)


class Due(NamedTuple):
    """A message that nobody sends but the clock."""

    message: Message
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


_last_end = sa.func.max(t.tasks.c.due_at, type_=t.tasks.c.due_at.type).label("last_end")
_LAST_ENDS = prepared(sa.select(t.tasks.c.run_id, _last_end).where(t.IS_LEASED_TASK).group_by(t.tasks.c.run_id))


async def leases_from_ahead(connection: AsyncConnection, now: datetime) -> list[Due]:
    """Leases with more time left than they are long: they were taken or renewed while the clock was ahead."""
    last_ends = {row.run_id: row.last_end for row in await connection.execute(_LAST_ENDS)}
    of_runs = sa.select(t.runs.c.id, t.runs.c.spec).where(t.runs.c.id.in_(last_ends))
    ends = {row.id: now + timedelta(seconds=row.spec["lease_s"]) for row in await connection.execute(of_runs)}
    due: list[Due] = []
    for run_id in [run_id for run_id, end in ends.items() if last_ends[run_id] > end]:
        beyond = (t.tasks.c.run_id == run_id) & (t.tasks.c.due_at > ends[run_id])
        found = sa.select(t.tasks.c.id, t.tasks.c.lease_token).where(t.IS_LEASED_TASK, beyond).limit(DUE_AT_ONCE)
        due += [Due(LeaseRanOut(row.id, row.lease_token), row.id, run_id) for row in await connection.execute(found)]
    return due


_CLAIMABLE = prepared(
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
        _CLAIMABLE, {"client_ids": list(client_ids), "now": now, "ahead": now + MAX_BACKOFF}
    )
    return list({row.client_id: None for row in found if row.run_id not in without})


_TO_CLAIM_FROM = prepared(
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


_HELD_FOR_STORAGE = prepared(sa.select(t.runs.c.id).where(t.runs.c.status == "paused", t.runs.c.hold == "storage-full"))


async def runs_held_for_storage(connection: AsyncConnection) -> list[UUID]:
    return list((await connection.execute(_HELD_FOR_STORAGE)).scalars())


_COLLECTIONS = prepared(
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
_DONE = prepared(t.jobs.update().where(t.jobs.c.id.in_(sa.bindparam("jobs", expanding=True))).values(status="done"))


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
_COLLECTABLE = prepared(
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
_DROP_UPDATES = prepared(t.updates.update().where(t.updates.c.id.in_(_ids)).values(stored=False))
_made_of = t.contributions.c
_CALIBRATED = prepared(sa.select(_made_of.digest).where(_made_of.update_id.in_(_ids), _made_of.digest.is_not(None)))


async def forget_updates(connection: AsyncConnection, federation_id: UUID, found: list[tuple[UUID, str]]) -> None:
    """Mark updates as no longer stored and give up their blobs, and what was kept in their place."""
    ids = [update_id for update_id, _ in found]
    calibrated = set((await connection.execute(_CALIBRATED, {"ids": ids})).scalars())
    await connection.execute(_DROP_UPDATES, {"ids": ids})
    await blobs.drop(connection, await blobs.of_updates(connection, ids))
    await references.release(connection, federation_id, calibrated)


_WAITING_JOB = prepared(
    sa.select(t.jobs.c.id)
    .where(
        t.jobs.c.kind.in_(sa.bindparam("kinds", expanding=True)),
        t.IS_OPEN_JOB,
        ((t.jobs.c.status == "ready") & t.jobs.c.due_at.is_(None)) | _DUE,
    )
    .limit(1)
)


async def has_job(
    connection: AsyncConnection, kinds: Sequence[str], now: datetime, lease_s: float = SHORTEST_LEASE_S
) -> bool:
    """Whether it is worth a writing transaction to try and lease one."""
    wanted = {"kinds": list(kinds), "now": now, "ahead": _beyond(now, lease_s)}
    return (await connection.execute(_WAITING_JOB, wanted)).first() is not None


_BUSY = t.cohorts.c.phase.in_(("starting", "asking", "computing"))
_IN_LOCKSTEP = prepared(
    sa.select(t.cohorts.c.run_id)
    .join(t.runs, t.runs.c.id == t.cohorts.c.run_id)
    .where(t.cohorts.c.is_lockstep, t.runs.c.status == "running")
    .group_by(t.cohorts.c.run_id, t.cohorts.c.group)
    .having(sa.func.count().filter(_BUSY) == 0, sa.func.count().filter(t.cohorts.c.phase == "waiting") > 0)
)


async def runs_in_lockstep(connection: AsyncConnection) -> list[UUID]:
    """Running runs with a group whose cohorts all wait for their next round."""
    return sorted(set((await connection.execute(_IN_LOCKSTEP)).scalars()))


_UNDER_WAY = prepared(
    sa.select(t.erasures.c.id).where(
        t.erasures.c.status.in_(("fenced", "executing", "requires_action"))
        | ((t.erasures.c.status == "received") & t.erasures.c.reason.is_not(None))  # until its workers have confirmed
    )
)


async def erasures_under_way(connection: AsyncConnection) -> list[UUID]:
    return list((await connection.execute(_UNDER_WAY)).scalars())


async def cohorts_with(connection: AsyncConnection, client_ids: list[UUID]) -> list[tuple[UUID, UUID, int]]:
    """(run, cohort, epoch) of every cohort that has one of the clients as a member, past or present."""
    statement = (
        sa.select(t.cohorts.c.run_id, t.cohorts.c.id, t.cohorts.c.epoch)
        .join(t.members, t.members.c.cohort_id == t.cohorts.c.id)
        .where(t.members.c.client_id.in_(client_ids), t.cohorts.c.phase != "retired")
        .distinct()
        .order_by(t.cohorts.c.run_id, t.cohorts.c.id)
    )
    return [(row.run_id, row.id, row.epoch) for row in await connection.execute(statement)]


async def erasure_status(connection: AsyncConnection, erasure_id: UUID) -> str | None:
    """One whose tombstone could not be written counts as received."""
    c = t.erasures.c
    row = (await connection.execute(sa.select(c.status, c.fenced_at).where(c.id == erasure_id))).first()
    if row is None:
        return None
    return "received" if row.status == "requires_action" and row.fenced_at is None else str(row.status)


async def erasure_version(connection: AsyncConnection, erasure_id: UUID) -> int | None:
    statement = sa.select(t.erasures.c.version).where(t.erasures.c.id == erasure_id)
    return (await connection.execute(statement)).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class Parcel:
    """A delivery with the secret of its callback."""

    delivery: Delivery
    secret: str | None


async def parcel(connection: AsyncConnection, delivery_id: UUID) -> Parcel:
    statement = (
        sa.select(t.deliveries, t.erasures.c.callbacks)
        .join(t.erasures, t.erasures.c.id == t.deliveries.c.erasure_id)
        .where(t.deliveries.c.id == delivery_id)
    )
    row = (await connection.execute(statement)).one()
    values = {name: value for name, value in row._mapping.items() if name != "callbacks"}
    return Parcel(Delivery(**values), row.callbacks[row.callback]["secret"])


async def names_to_erase(connection: AsyncConnection, client_ids: list[UUID]) -> list[str]:
    """Of those among the clients that were not erased yet."""
    c = t.clients.c
    statement = sa.select(c.name).where(c.id.in_(client_ids), c.status != "erased").order_by(c.name)
    return list((await connection.execute(statement)).scalars())
