"""The outbox: jobs that pumps lease, keep, give back and finish."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Job
from coordinator.store import tables as t
from coordinator.store.rows import to_entity

SHORTEST_LEASE_S: Final = 30.0
_now = sa.bindparam("now", type_=t.jobs.c.due_at.type)
_AHEAD = (t.jobs.c.kind != "notify") & (t.jobs.c.due_at > sa.bindparam("ahead", type_=t.jobs.c.due_at.type))
"""Further off than any lease or pause reaches: it was set while the clock was ahead, and would last until then."""
_DUE = (t.jobs.c.due_at <= _now) | _AHEAD
_FREE = (t.jobs.c.status == "ready") & (t.jobs.c.due_at.is_(None) | _DUE)
_ABANDONED = (t.jobs.c.status == "leased") & _DUE
_WANTED = (t.runs.c.status == "running") & (t.cohorts.c.epoch == t.jobs.c.epoch)
_IS_OF_OTHERS = sa.case((t.cohorts.c.kind.in_(("root", "merge")), 0), else_=1)
"""Not of a cohort whose model stands for the run. After a fence those are made anew before the ones below them."""
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
    .order_by(t.jobs.c.kind != "fence", _IS_OF_OTHERS, t.jobs.c.created_at, t.jobs.c.id)
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
_LEASE = _TAKE.returning(t.jobs)
_LEASE_UNREAD = _TAKE.returning(t.jobs.c.id, t.jobs.c.num_failures)


async def lease_job(
    connection: AsyncConnection, kinds: Sequence[str], now: datetime, lease_s: float, token: str
) -> Job | None:
    """Take the oldest job that is ready or whose holder went silent: a fence before all others, then those of the
    models that are served. Kernels of a paused or fenced line stay put."""
    leased = {"kinds": list(kinds), "now": now, "token": token, "until": now + timedelta(seconds=lease_s)}
    leased["ahead"] = _beyond(now, lease_s)
    row = (await connection.execute(_LEASE, leased)).first()
    return to_entity(Job, row) if row is not None else None


def _beyond(now: datetime, lease_s: float) -> datetime:
    """The instant twice a lease from now: replicas may differ a little in how long theirs are."""
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
_RENEW = _HELD.values(due_at=sa.bindparam("until", type_=t.jobs.c.due_at.type))
_RETURN = _HELD.values(
    status="ready",
    due_at=sa.bindparam("until", type_=t.jobs.c.due_at.type),
    num_failures=t.jobs.c.num_failures + sa.bindparam("failures", type_=sa.Integer),
    error=sa.bindparam("error"),
)
_FINISH = t.jobs.update().where(_OWN).values(status="done", due_at=None)


async def renew_job(connection: AsyncConnection, job_id: UUID, token: str, until: datetime) -> bool:
    """Keep a long kernel's lease; False when somebody else has the job or nobody wants it any more."""
    return bool((await connection.execute(_RENEW, {"job": job_id, "token": token, "until": until})).rowcount)


async def return_job(
    connection: AsyncConnection, job_id: UUID, token: str, until: datetime, error: str, *, is_failure: bool
) -> None:
    """Give a job back that could not be carried out; it is not leased again before `until`."""
    returned = {"job": job_id, "token": token, "until": until, "error": error, "failures": int(is_failure)}
    await connection.execute(_RETURN, returned)


_HURRY = (
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


_WAITING_JOB = (
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
