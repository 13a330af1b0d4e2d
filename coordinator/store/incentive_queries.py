"""What is shown of incentives: the periods in which clients were divided among jobs, and the ledger."""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Period
from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from coordinator.store.rows import to_entity
from services.wire.v1 import incentives as wire
from services.wire.v1.resources import Page


async def periods(connection: AsyncConnection, federation_id: UUID, position: Position) -> Page[wire.Period]:
    """The newest first."""
    own = sa.select(t.periods).where(t.periods.c.federation_id == federation_id)
    return await page(
        connection, own, t.periods.c.number, position, lambda row: shown(to_entity(Period, row)), newest_first=True
    )


async def ledger(connection: AsyncConnection, federation_id: UUID, position: Position) -> Page[wire.LedgerEntry]:
    own = sa.select(t.ledger).where(t.ledger.c.federation_id == federation_id)
    return await page(connection, own, t.ledger.c.id, position, _entry)


async def ledger_of_client(connection: AsyncConnection, client_id: UUID, position: Position) -> Page[wire.LedgerEntry]:
    own = sa.select(t.ledger).where(t.ledger.c.client_id == client_id)
    return await page(connection, own, t.ledger.c.id, position, _entry)


def shown(period: Period) -> wire.Period:
    division = period.division
    return wire.Period(
        number=period.number,
        strategy=period.strategy,
        begun_at=period.begun_at,
        incentives=period.incentives,
        jobs=[wire.PeriodJob(id=job.id, name=job.name, pool=job.pool) for job in period.jobs],
        clients=[
            wire.PeriodClient(
                client=one.client,
                jobs=list(one.jobs),
                samples=one.samples,
                seconds=one.seconds,
                bytes=one.bytes,
                stored_bytes=one.stored_bytes,
            )
            for one in period.candidates
        ],
        serves=dict(division.jobs),
        populations=[
            wire.PeriodPopulation(clients=list(one.clients), shares=list(one.shares), utilities=list(one.utilities))
            for one in division.populations
        ],
        total_utility=division.total_utility,
        num_periods=division.num_periods,
        is_settled=division.is_settled,
    )


def _entry(row: sa.Row[tuple[object, ...]]) -> wire.LedgerEntry:
    told = {name: value for name, value in row._mapping.items() if name in wire.LedgerEntry.model_fields}
    return wire.LedgerEntry.model_validate(told)
