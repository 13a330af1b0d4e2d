"""What is read about the histories of runs: coverage by cohort, and the sealed copies. Reads only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.kept_updates import IN_LIVE_MODEL, IN_MODELS, IS_COPIED, LIVE
from coordinator.store.paging import Position, page
from services.history.coverage import FIRST_ROUND, cover, stride
from services.history.spec import UpdateHistory
from services.methods.catalogue import UNLEARNING
from services.wire.v1.resources import CohortHistory, KeptUpdate, Page

k = t.kept_updates.c


@dataclass(frozen=True, slots=True)
class _Round:
    """What the models of one round were made of."""

    number: int
    num_available: int
    num_unmeasured: int


@dataclass(frozen=True, slots=True)
class _Copies:
    """The copies of one round."""

    number: int
    num: int
    num_bytes: int
    largest_error: float
    relative_error: float


async def cohorts(
    connection: AsyncConnection, run_id: UUID, policy: UpdateHistory | None, position: Position
) -> Page[CohortHistory]:
    """The coverage of all cohorts that train."""
    c = t.cohorts.c
    statement = sa.select(t.cohorts).where(c.run_id == run_id, c.kind.not_in(("merge", "profile")))
    found = await page(connection, statement, c.id, position, lambda row: row)
    ids = [row.id for row in found.items]
    rounds, copies = await _rounds(connection, ids), await _copies(connection, ids)
    shown = [_cohort(row, policy, rounds.get(row.id, []), copies.get(row.id, [])) for row in found.items]
    return Page(items=shown, next_cursor=found.next_cursor)


async def kept_updates(connection: AsyncConnection, run_id: UUID, position: Position) -> Page[KeptUpdate]:
    statement = (
        sa.select(t.kept_updates, t.cohorts.c.name.label("cohort"), k.num_bytes.label("bytes"))
        .join(t.cohorts, t.cohorts.c.id == k.cohort_id)
        .where(k.run_id == run_id, k.status == "stored")
    )
    return await page(connection, statement, k.id, position, _kept_update)


def _kept_update(row: sa.Row[Any]) -> KeptUpdate:
    return KeptUpdate(**{name: value for name, value in row._mapping.items() if name in KeptUpdate.model_fields})


def _cohort(
    row: sa.Row[Any], policy: UpdateHistory | None, rounds: list[_Round], copies: list[_Copies]
) -> CohortHistory:
    available = [one.number for one in rounds if one.num_available]
    missing = [one.number for one in rounds if not one.num_available]
    is_whole = bool(available) and available[0] == FIRST_ROUND
    has = {
        "needs_history": is_whole,
        "needs_residuals": row.residuals is not None,
        "needs_distances": bool(rounds) and not any(one.num_unmeasured for one in rounds),
    }
    return CohortHistory(
        cohort_id=row.id,
        cohort=row.name,
        rounds=available,
        missing=missing,
        interval=stride(missing) if is_whole else None,
        num_sealed=sum(one.num for one in copies),
        sealed_bytes=sum(one.num_bytes for one in copies),
        largest_error=max((one.largest_error for one in copies), default=0.0),
        relative_error=max((one.relative_error for one in copies), default=0.0),
        report=_report(policy, {one.number: one.num_bytes for one in copies}, len(available)),
        suffices_for=[
            name
            for name, method in UNLEARNING.items()
            if any(getattr(method, need) for need in has) and all(has[n] for n in has if getattr(method, n))
        ],
    )


def _report(policy: UpdateHistory | None, bytes_by_round: dict[int, int], num_available: int) -> str:
    if policy is None:
        return (
            f"nothing is sealed, as history.updates is not set; retention keeps the updates of {num_available} rounds"
        )
    return cover(bytes_by_round, policy).report


async def _rounds(connection: AsyncConnection, cohort_ids: Collection[UUID]) -> dict[UUID, list[_Round]]:
    """Ascending."""
    c = t.checkpoints.c
    statement = (
        sa.select(c.cohort_id, c.round)
        .add_columns(sa.func.count().filter(t.updates.c.stored | IS_COPIED).label("num_available"))
        .add_columns(sa.func.count().filter(t.contributions.c.distance.is_(None)).label("num_unmeasured"))
        .select_from(IN_MODELS)
        .where(c.cohort_id.in_(cohort_ids), LIVE)
        .group_by(c.cohort_id, c.round)
        .order_by(c.round)
    )
    found: dict[UUID, list[_Round]] = {}
    for row in await connection.execute(statement):
        found.setdefault(row.cohort_id, []).append(_Round(row.round, row.num_available, row.num_unmeasured))
    return found


async def _copies(connection: AsyncConnection, cohort_ids: Collection[UUID]) -> dict[UUID, list[_Copies]]:
    statement = (
        sa.select(k.cohort_id, k.round, sa.func.count().label("num"), sa.func.sum(k.num_bytes).label("num_bytes"))
        .add_columns(sa.func.max(k.largest_error).label("largest"), sa.func.max(k.relative_error).label("relative"))
        .where(k.cohort_id.in_(cohort_ids), k.status == "stored", IN_LIVE_MODEL)
        .group_by(k.cohort_id, k.round)
    )
    found: dict[UUID, list[_Copies]] = {}
    for row in await connection.execute(statement):
        copies = _Copies(row.round, row.num, int(row.num_bytes), row.largest, row.relative)
        found.setdefault(row.cohort_id, []).append(copies)
    return found
