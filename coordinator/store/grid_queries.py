"""A run as a grid of clients and rounds: who did what. Reads only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from services.wire.v1.views import GridRow, RunGrid
from services.wire.v1.work import FIGURES_ONLY

CODES: Final = {
    "d": "done",
    "l": "late: the round closed without it",
    "f": "failed",
    "r": "revoked: its epoch or its run ended first",
    "o": "open",
    "-": "not asked",
}
_WORST_FIRST: Final = "folrd"
MOST_ROUNDS: Final = 500
USUAL_ROUNDS: Final = 50


@dataclass(frozen=True, slots=True)
class Window:
    """Rounds of a grid; those left out are the newest ones."""

    first: int | None = None
    last: int | None = None
    cohort_id: UUID | None = None


async def grid(
    connection: AsyncConnection, run_id: UUID, federation_id: UUID, window: Window, position: Position
) -> RunGrid:
    """A page of clients, by name. Where a client is asked by several cohorts in a round, what needs attention shows."""
    newest = await _newest_round(connection, run_id, window.cohort_id)
    last = newest if window.last is None else min(window.last, newest)
    first = max(1, last - USUAL_ROUNDS + 1) if window.first is None else window.first
    rounds = list(range(first, min(last, first + MOST_ROUNDS - 1) + 1))
    clients = _clients(run_id, federation_id, window.cohort_id)
    found = await page(connection, clients, t.clients.c.name, position, lambda row: row)
    counting = sa.select(sa.func.count()).select_from(clients.subquery())
    total = (await connection.execute(counting)).scalar_one()
    cells = await _cells(connection, run_id, window.cohort_id, [row.id for row in found.items], rounds)
    return RunGrid(
        rounds=rounds,
        clients=[
            GridRow(client_id=row.id, name=row.name, cells=[cells[row.id].get(number, "-") for number in rounds])
            for row in found.items
        ],
        codes=CODES,
        left_off=total - len(found.items),
        next_cursor=found.next_cursor,
    )


async def _newest_round(connection: AsyncConnection, run_id: UUID, cohort_id: UUID | None) -> int:
    r = t.rounds.c
    own = r.cohort_id == cohort_id if cohort_id is not None else r.run_id == run_id
    newest = sa.select(sa.func.max(r.number)).where(own, r.kind.not_in(FIGURES_ONLY))
    return int((await connection.execute(newest)).scalar_one_or_none() or 0)


def _clients(run_id: UUID, federation_id: UUID, cohort_id: UUID | None) -> sa.Select[Any]:
    """Clients that take or took part. What is kept of an erased client's work is shown to nobody by name."""
    c, m = t.clients.c, t.members.c
    takes_part = sa.exists().where(m.client_id == c.id, t.cohorts.c.id == m.cohort_id, t.cohorts.c.run_id == run_id)
    if cohort_id is not None:
        takes_part = sa.exists().where(m.client_id == c.id, m.cohort_id == cohort_id)
    return sa.select(c.id, c.name).where(c.federation_id == federation_id, c.status != "erased", takes_part)


async def _cells(
    connection: AsyncConnection, run_id: UUID, cohort_id: UUID | None, client_ids: list[UUID], rounds: list[int]
) -> dict[UUID, dict[int, str]]:
    """The cells of the newest epoch in which a cohort asked a client in a round."""
    cells: dict[UUID, dict[int, str]] = defaultdict(dict)
    if not client_ids or not rounds:
        return cells
    x = t.tasks.c
    statement = (
        sa.select(x.client_id, x.cohort_id, x.round, x.epoch, x.status, t.rounds.c.status.label("round_status"))
        .join(t.rounds, t.rounds.c.id == x.round_id)
        .where(x.client_id.in_(client_ids), x.run_id == run_id, x.round.between(rounds[0], rounds[-1]))
        .where(x.kind.not_in(FIGURES_ONLY), x.status != "standby")
        .order_by(x.epoch)
    )
    if cohort_id is not None:
        statement = statement.where(x.cohort_id == cohort_id)
    newest: dict[tuple[UUID, int, UUID], str] = {}
    for row in await connection.execute(statement):
        newest[row.client_id, row.round, row.cohort_id] = _code(row.status, row.round_status)
    for (client_id, number, _), code in newest.items():
        known = cells[client_id].get(number, code)
        cells[client_id][number] = min(known, code, key=_WORST_FIRST.index)
    return cells


def _code(status: str, round_status: str) -> str:
    match status:
        case "done":
            return "d"
        case "failed":
            return "f"
        case "revoked":
            return "l" if round_status == "closed" else "r"
    return "o"
