"""Clients' workers as the coordinator knows them: what they have in hand, did and failed at. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from coordinator.store.queries import task_of
from services.wire.v1.resources import Page, Task
from services.wire.v1.views import TaskInHand, WorkerFailure
from services.wire.v1.work import Device


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """All but whether it is heard of now: the bus says that."""

    client_id: UUID
    client_name: str
    last_seen_at: datetime | None
    device: Device | None
    version: str | None
    task_in_hand: TaskInHand | None
    last_failure: WorkerFailure | None
    bytes_received: int
    tasks_done: int


async def tasks_of(connection: AsyncConnection, client_id: UUID, position: Position) -> Page[Task]:
    """Newest first."""
    statement = sa.select(t.tasks).where(t.tasks.c.client_id == client_id)
    return await page(connection, statement, t.tasks.c.id, position, task_of, newest_first=True)


async def workers(connection: AsyncConnection, federation_id: UUID, position: Position) -> Page[KnownWorker]:
    """The workers of active clients, by name."""
    c = t.clients.c
    statement = sa.select(c.id, c.name, c.last_seen_at, c.devices, c.agent_version).where(
        c.federation_id == federation_id, c.status == "active"
    )
    found = await page(connection, statement, c.name, position, lambda row: row)
    ids = [row.id for row in found.items]
    in_hand, failures = await _in_hand(connection, ids), await _failures(connection, ids)
    done = await _done(connection, ids)
    known = [
        KnownWorker(
            client_id=row.id,
            client_name=row.name,
            last_seen_at=row.last_seen_at,
            device=_device(row.devices),
            version=row.agent_version,
            task_in_hand=in_hand.get(row.id),
            last_failure=failures.get(row.id),
            bytes_received=done.get(row.id, (0, 0))[0],
            tasks_done=done.get(row.id, (0, 0))[1],
        )
        for row in found.items
    ]
    return Page(items=known, next_cursor=found.next_cursor)


async def _in_hand(connection: AsyncConnection, client_ids: Sequence[UUID]) -> dict[UUID, TaskInHand]:
    """The task that each was handed last, if it has one."""
    x = t.tasks.c
    statement = sa.select(x.client_id, x.id, x.run_id, x.kind, x.round, x.leased_at, x.progress).where(
        t.IS_CLAIMABLE_OR_LEASED, x.status == "leased", x.client_id.in_(client_ids)
    )
    return {
        row.client_id: TaskInHand(
            task_id=row.id,
            run_id=row.run_id,
            kind=row.kind,
            round=row.round,
            since=row.leased_at,
            progress=row.progress,
        )
        for row in await connection.execute(statement.order_by(x.leased_at, x.id))
    }


async def _failures(connection: AsyncConnection, client_ids: Sequence[UUID]) -> dict[UUID, WorkerFailure]:
    """The newest of each."""
    x = t.tasks.c
    rank = sa.func.row_number().over(partition_by=x.client_id, order_by=x.id.desc()).label("rank")
    failed = (
        sa.select(x.client_id, x.id, x.run_id, x.round, x.failure, rank)
        .where(t.IS_FAILED_TASK, x.client_id.in_(client_ids))
        .subquery()
    )
    rows = await connection.execute(sa.select(failed).where(failed.c.rank == 1))
    return {
        row.client_id: WorkerFailure(task_id=row.id, run_id=row.run_id, round=row.round, reason=row.failure)
        for row in rows
    }


async def _done(connection: AsyncConnection, client_ids: Sequence[UUID]) -> dict[UUID, tuple[int, int]]:
    """Bytes and number of the updates and figures that were accepted."""
    u = t.updates.c
    statement = (
        sa.select(u.client_id, sa.func.sum(u.num_bytes).label("num_bytes"), sa.func.count().label("num"))
        .where(u.client_id.in_(client_ids))
        .group_by(u.client_id)
    )
    rows = await connection.execute(statement)
    return {row.client_id: (int(row.num_bytes or 0), row.num) for row in rows}


def _device(devices: list[dict[str, Any]]) -> Device | None:
    """The one that it trains on: a worker names the best one first."""
    return Device(kind=devices[0]["kind"], name=devices[0].get("name", "")) if devices else None
