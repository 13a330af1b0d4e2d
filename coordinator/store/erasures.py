"""What is read about requests to forget: the requests, their lines, their log, their certificates. Reads only.

`within` is the caller's federation; `about` is set for a client, which sees the requests that are about it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED
from coordinator.store import exclusions
from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from services.core.errors import Rejected
from services.wire.v1.erasure import ErasureDelivery, ErasureEvent, ErasureLine, ErasureRequest, ErasureStatus
from services.wire.v1.resources import Page


@dataclass(frozen=True, slots=True)
class View:
    """What a caller may see."""

    within: UUID | None
    about: UUID | None = None


@dataclass(frozen=True, slots=True)
class Certified:
    """The request that was carried out, its certificate as it was signed, and who filed the request that was asked
    for."""

    request_id: UUID
    envelope: bytes
    requested_by: str


async def erasure(connection: AsyncConnection, erasure_id: UUID, view: View, now: datetime) -> ErasureRequest:
    row = await _row(connection, erasure_id, view)
    (found,) = await _requests(connection, [row], now)
    return found


async def erasures(
    connection: AsyncConnection, view: View, status: ErasureStatus | None, position: Position, now: datetime
) -> Page[ErasureRequest]:
    """Newest first."""
    statement = _visible(view)
    if status is not None:
        statement = statement.where(t.erasures.c.status == status)
    found = await page(connection, statement, t.erasures.c.id, position, lambda row: row, newest_first=True)
    return Page(items=await _requests(connection, found.items, now), next_cursor=found.next_cursor)


async def require(connection: AsyncConnection, erasure_id: UUID, view: View) -> None:
    await _row(connection, erasure_id, view)


async def concerned(connection: AsyncConnection, erasure_id: UUID) -> tuple[UUID, dict[str, UUID]]:
    """The federation of a request, and the ids of its clients by their names."""
    own = sa.select(t.erasures.c.federation_id).where(t.erasures.c.id == erasure_id)
    subjects = sa.select(t.subjects.c.name, t.subjects.c.client_id).where(t.subjects.c.erasure_id == erasure_id)
    federation_id: UUID = (await connection.execute(own)).scalar_one()
    return federation_id, {row.name: row.client_id for row in await connection.execute(subjects)}


async def events(connection: AsyncConnection, erasure_id: UUID, position: Position) -> Page[ErasureEvent]:
    shown = [t.erasure_log.c[name] for name in ErasureEvent.model_fields]
    statement = sa.select(*shown).where(t.erasure_log.c.erasure_id == erasure_id)
    return await page(connection, statement, t.erasure_log.c.seq, position, lambda row: ErasureEvent(**row._mapping))


async def deliveries(connection: AsyncConnection, erasure_id: UUID, position: Position) -> Page[ErasureDelivery]:
    """Deliveries in the order of their ids: by time."""
    shown = [t.deliveries.c[name] for name in ErasureDelivery.model_fields]
    statement = sa.select(*shown).where(t.deliveries.c.erasure_id == erasure_id)
    return await page(connection, statement, t.deliveries.c.id, position, lambda row: ErasureDelivery(**row._mapping))


async def has_settled(connection: AsyncConnection, erasure_id: UUID) -> bool:
    statement = sa.select(t.erasures.c.status).where(t.erasures.c.id == erasure_id)
    return (await connection.execute(statement)).scalar() in SETTLED


async def certificate(connection: AsyncConnection, erasure_id: UUID, view: View) -> Certified:
    """A duplicate has that of the request which was carried out."""
    row = await _row(connection, erasure_id, view)
    carried_out = row.duplicate_of or erasure_id
    statement = sa.select(t.certificates.c.envelope).where(t.certificates.c.erasure_id == carried_out)
    envelope: str | None = (await connection.execute(statement)).scalar_one_or_none()
    if envelope is None:
        raise Rejected(
            "certificate-not-ready", f"the request is {row.status}; a certificate is issued when it completes"
        )
    return Certified(carried_out, envelope.encode(), row.requested_by)


# --- rows to resources ------------------------------------------------------------------------------------------------


def _visible(view: View) -> sa.Select[Any]:
    e, s = t.erasures.c, t.subjects.c
    statement = sa.select(t.erasures)
    if view.within is not None:
        statement = statement.where(e.federation_id == view.within)
    if view.about is not None:
        of_request = sa.select(s.client_id).where(s.erasure_id == e.id)
        about_it = of_request.where(s.client_id == view.about).exists()
        about_others = of_request.where(s.client_id != view.about).exists()
        statement = statement.where(about_it, ~about_others)
    return statement


async def _row(connection: AsyncConnection, erasure_id: UUID, view: View) -> sa.Row[Any]:
    row: sa.Row[Any] | None = (await connection.execute(_visible(view).where(t.erasures.c.id == erasure_id))).first()
    if row is None:
        raise Rejected("not-found", f"there is no erasure request {erasure_id}")
    return row


async def _subjects(connection: AsyncConnection, ids: Sequence[UUID]) -> dict[UUID, list[str]]:
    s = t.subjects.c
    found: dict[UUID, list[str]] = {}
    for row in await connection.execute(sa.select(s.erasure_id, s.name).where(s.erasure_id.in_(ids)).order_by(s.name)):
        found.setdefault(row.erasure_id, []).append(row.name)
    return found


async def _lines(connection: AsyncConnection, ids: Sequence[UUID]) -> dict[UUID, list[ErasureLine]]:
    statement = (
        sa.select(t.lines, t.lines.c.cohort_name.label("cohort"))
        .add_columns(t.runs.c.name.label("run"), t.cohorts.c.round.label("round_now"))
        .join(t.runs, t.runs.c.id == t.lines.c.run_id)
        .join(t.cohorts, t.cohorts.c.id == t.lines.c.cohort_id)
        .where(t.lines.c.erasure_id.in_(ids))
        .order_by(t.runs.c.name, t.lines.c.run_id, t.lines.c.cohort_name)
    )
    found: dict[UUID, list[ErasureLine]] = {}
    for row in await connection.execute(statement):
        shown = {name: value for name, value in row._mapping.items() if name in ErasureLine.model_fields}
        found.setdefault(row.erasure_id, []).append(ErasureLine(**shown))
    return found


async def _requests(connection: AsyncConnection, rows: Sequence[sa.Row[Any]], now: datetime) -> list[ErasureRequest]:
    ids = [row.id for row in rows]
    subjects, lines = await _subjects(connection, ids), await _lines(connection, ids)
    ordered = await exclusions.of_requests(connection, ids)
    return [
        ErasureRequest(
            **{name: value for name, value in row._mapping.items() if name in ErasureRequest.model_fields},
            subjects=subjects.get(row.id, []),
            days_left=None if row.status in SETTLED else (row.legal_deadline - now).days,
            lines=lines.get(row.id, []),
            exclusions=ordered.get(row.id, []),
        )
        for row in rows
    ]
