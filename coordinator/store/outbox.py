"""The outbox and the clockwork: jobs to lease, leases and deadlines that are due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Job
from coordinator.engine.messages import DeadlinePassed, LeaseRanOut, Message
from coordinator.store import tables as t
from coordinator.store.rows import to_entity


async def lease_job(
    connection: AsyncConnection, kinds: Sequence[str], now: datetime, lease_s: float, token: str
) -> Job | None:
    """Take the oldest job that is ready or whose holder went silent. Kernels of a paused or fenced line stay put."""
    jobs, runs, cohorts = t.jobs, t.runs, t.cohorts
    free = (jobs.c.status == "ready") & (jobs.c.due_at.is_(None) | (jobs.c.due_at <= now))
    abandoned = (jobs.c.status == "leased") & (jobs.c.due_at <= now)
    wanted = (runs.c.status == "running") & (cohorts.c.epoch == jobs.c.epoch)
    statement = (
        sa.select(jobs)
        .outerjoin(runs, runs.c.id == jobs.c.run_id)
        .outerjoin(cohorts, cohorts.c.id == jobs.c.cohort_id)
        .where(jobs.c.kind.in_(kinds), free | abandoned, wanted | (jobs.c.kind != "kernel"))
        .order_by(jobs.c.created_at, jobs.c.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=jobs)
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    leased: dict[str, Any] = {
        "status": "leased",
        "lease_token": token,
        "due_at": now + timedelta(seconds=lease_s),
        "attempt": row.attempt + 1,
    }
    await connection.execute(jobs.update().where(jobs.c.id == row.id).values(**leased))
    return to_entity(Job, (await connection.execute(sa.select(jobs).where(jobs.c.id == row.id))).one())


async def renew_job(connection: AsyncConnection, job_id: UUID, token: str, until: datetime) -> bool:
    """Keep a long kernel's lease; False when somebody else has the job or nobody wants it any more."""
    jobs = t.jobs
    held = (jobs.c.id == job_id) & (jobs.c.lease_token == token) & (jobs.c.status == "leased")
    return bool((await connection.execute(jobs.update().where(held).values(due_at=until))).rowcount)


async def name_output(connection: AsyncConnection, job_id: UUID, token: str, digest: str) -> bool:
    """Note what a kernel made before it is stored; False when nobody wants it any more."""
    jobs = t.jobs
    held = (jobs.c.id == job_id) & (jobs.c.lease_token == token) & (jobs.c.status == "leased")
    return bool((await connection.execute(jobs.update().where(held).values(output=digest))).rowcount)


async def finish_chore(connection: AsyncConnection, job_id: UUID, token: str) -> None:
    jobs = t.jobs
    held = (jobs.c.id == job_id) & (jobs.c.lease_token == token)
    await connection.execute(jobs.update().where(held).values(status="done", due_at=None))


DUE_AT_ONCE = 200
_LAPSED = (
    sa.select(t.tasks.c.id, t.tasks.c.lease_token)
    .where(t.tasks.c.status == "leased", t.tasks.c.due_at <= sa.bindparam("now"))
    .limit(DUE_AT_ONCE)
)
_PASSED = (
    sa.select(t.rounds.c.id)
    .join(t.runs, t.runs.c.id == t.rounds.c.run_id)
    .where(t.rounds.c.status == "open", t.rounds.c.due_at <= sa.bindparam("now"), t.runs.c.status == "running")
    .limit(DUE_AT_ONCE)
)


async def due_messages(connection: AsyncConnection, now: datetime) -> list[Message]:
    """Leases that ran out and deadlines that passed, in runs that are not paused."""
    lapsed = await connection.execute(_LAPSED, {"now": now})
    messages: list[Message] = [LeaseRanOut(row.id, row.lease_token) for row in lapsed]
    messages += [DeadlinePassed(row.id) for row in await connection.execute(_PASSED, {"now": now})]
    return messages


_CLAIMABLE = (
    sa.select(t.tasks.c.client_id)
    .join(t.runs, t.runs.c.id == t.tasks.c.run_id)
    .where(
        t.tasks.c.client_id.in_(sa.bindparam("client_ids", expanding=True)),
        t.tasks.c.status == "ready",
        t.tasks.c.due_at.is_(None) | (t.tasks.c.due_at <= sa.bindparam("now")),
        t.runs.c.status == "running",
    )
    .distinct()
)


async def claimable_clients(connection: AsyncConnection, client_ids: Sequence[UUID], now: datetime) -> list[UUID]:
    """Which of these clients have a task they could claim now."""
    found = await connection.execute(_CLAIMABLE, {"client_ids": list(client_ids), "now": now})
    return list(found.scalars())


async def runs_held_for_storage(connection: AsyncConnection) -> list[UUID]:
    statement = sa.select(t.runs.c.id).where(t.runs.c.status == "paused", t.runs.c.hold == "storage-full")
    return list((await connection.execute(statement)).scalars())


async def updates_to_collect(connection: AsyncConnection, cohort_id: UUID, up_to_round: int) -> list[tuple[UUID, str]]:
    """Stored updates of a cohort that its retention policy no longer keeps: (update id, digest)."""
    updates, rounds = t.updates, t.rounds
    statement = (
        sa.select(updates.c.id, updates.c.digest)
        .join(rounds, rounds.c.id == updates.c.consumed_by)
        .where(
            updates.c.cohort_id == cohort_id,
            updates.c.stored,
            updates.c.digest.is_not(None),
            rounds.c.number <= up_to_round,
        )
    )
    return [(row.id, row.digest) for row in await connection.execute(statement)]


async def forget_updates(connection: AsyncConnection, federation_id: UUID, found: list[tuple[UUID, str]]) -> list[str]:
    """Mark updates as no longer stored and drop the records of blobs that nothing refers to any more."""
    ids, digests = [update_id for update_id, _ in found], {digest for _, digest in found}
    await connection.execute(t.updates.update().where(t.updates.c.id.in_(ids)).values(stored=False))
    used = sa.union(
        sa.select(t.updates.c.digest).where(t.updates.c.digest.in_(digests), t.updates.c.stored),
        sa.select(t.checkpoints.c.digest).where(t.checkpoints.c.digest.in_(digests)),
    )
    kept = set((await connection.execute(used)).scalars())
    unused = sorted(digests - kept)
    own = (t.blobs.c.federation_id == federation_id) & t.blobs.c.digest.in_(unused)
    await connection.execute(t.blobs.delete().where(own))
    return unused


_WAITING_JOB = (
    sa.select(t.jobs.c.id)
    .where(
        t.jobs.c.kind.in_(sa.bindparam("kinds", expanding=True)),
        t.jobs.c.status.in_(("ready", "leased")),
        ((t.jobs.c.status == "ready") & t.jobs.c.due_at.is_(None)) | (t.jobs.c.due_at <= sa.bindparam("now")),
    )
    .limit(1)
)


async def has_job(connection: AsyncConnection, kinds: Sequence[str], now: datetime) -> bool:
    """Whether it is worth a writing transaction to try and lease one."""
    return (await connection.execute(_WAITING_JOB, {"kinds": list(kinds), "now": now})).first() is not None


async def orphans(connection: AsyncConnection, older_than: datetime, limit: int = 100) -> list[tuple[UUID, str]]:
    """Clients' uploads that were never submitted: (federation, digest)."""
    used = sa.select(t.updates.c.digest).where(t.updates.c.digest == t.blobs.c.digest).exists()
    statement = (
        sa.select(t.blobs.c.federation_id, t.blobs.c.digest)
        .where(t.blobs.c.uploaded_by.is_not(None), t.blobs.c.created_at < older_than, ~used)
        .limit(limit)
    )
    return [(row.federation_id, row.digest) for row in await connection.execute(statement)]


async def forget_blob(connection: AsyncConnection, federation_id: UUID, digest: str) -> None:
    own = (t.blobs.c.federation_id == federation_id) & (t.blobs.c.digest == digest)
    await connection.execute(t.blobs.delete().where(own))


async def runs_in_lockstep(connection: AsyncConnection) -> list[UUID]:
    """Running runs with a group whose cohorts all wait for their next round."""
    cohorts, runs = t.cohorts, t.runs
    busy = cohorts.c.phase.in_(("starting", "asking", "computing"))
    statement = (
        sa.select(cohorts.c.run_id)
        .join(runs, runs.c.id == cohorts.c.run_id)
        .where(cohorts.c.is_lockstep, runs.c.status == "running")
        .group_by(cohorts.c.run_id, cohorts.c.group)
        .having(sa.func.count().filter(busy) == 0, sa.func.count().filter(cohorts.c.phase == "waiting") > 0)
    )
    return sorted(set((await connection.execute(statement)).scalars()))


async def erasures_under_way(connection: AsyncConnection) -> list[UUID]:
    statement = sa.select(t.erasures.c.id).where(t.erasures.c.status.in_(("fenced", "executing", "requires_action")))
    return list((await connection.execute(statement)).scalars())


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


async def revoke_credentials(connection: AsyncConnection, client_ids: list[UUID], now: datetime) -> None:
    own = t.credentials.c.client_id.in_(client_ids) & t.credentials.c.revoked_at.is_(None)
    await connection.execute(t.credentials.update().where(own).values(revoked_at=now))


async def erasure_status(connection: AsyncConnection, erasure_id: UUID) -> str | None:
    statement = sa.select(t.erasures.c.status).where(t.erasures.c.id == erasure_id)
    return (await connection.execute(statement)).scalar_one_or_none()


async def names_to_erase(connection: AsyncConnection, client_ids: list[UUID]) -> list[str]:
    """Of those among the clients that were not erased yet."""
    c = t.clients.c
    statement = sa.select(c.name).where(c.id.in_(client_ids), c.status != "erased").order_by(c.name)
    return list((await connection.execute(statement)).scalars())
