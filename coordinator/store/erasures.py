"""What is read about requests to forget: the requests, their lines, their log, their certificates. Reads only.

`within` is the caller's federation; `about` is set for a client, which sees the requests that are about it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import SETTLED, Erasure, Extension, Party, Ruling
from coordinator.engine.erasure.four_eyes import may_decide
from coordinator.store import exclusions
from coordinator.store import tables as t
from coordinator.store.codecs import CODECS
from coordinator.store.paging import Position, page, page_by_time
from services.core.errors import Rejected
from services.wire.v1 import erasure as wire
from services.wire.v1.erasure import (
    ErasureCount,
    ErasureDelivery,
    ErasureEvent,
    ErasureLine,
    ErasureRequest,
    ErasureStatus,
    Sort,
)
from services.wire.v1.people import Actor
from services.wire.v1.resources import Page

DUE_SOON: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class View:
    """What a caller may see."""

    within: UUID | None
    about: UUID | None = None
    decider: Party | None = None
    """The caller, if it may decide requests."""
    made_by: tuple[UUID, ...] = ()
    """The credentials that made the decider's."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which requests are wanted; what is not said does not matter."""

    statuses: tuple[ErasureStatus, ...] = ()
    subject: str | None = None
    run_id: UUID | None = None
    """Only requests that touch this run, or will when they are fenced."""
    due_before: datetime | None = None
    """Only requests that are not over, with an earlier legal deadline."""
    awaits_me: bool = False


@dataclass(frozen=True, slots=True)
class Certified:
    """The request that was carried out, its certificate as it was signed, and who filed the request that was asked
    for."""

    request_id: UUID
    envelope: bytes
    requested_by: str


async def erasure(connection: AsyncConnection, erasure_id: UUID, view: View, now: datetime) -> ErasureRequest:
    row = await _row(connection, erasure_id, view)
    (found,) = await _requests(connection, [row], now, view)
    return found


async def erasures(
    connection: AsyncConnection, view: View, filters: Filters, sort: Sort, position: Position, now: datetime
) -> Page[ErasureRequest]:
    e, descends = t.erasures.c, sort.startswith("-")
    statement = _wanted(view, filters)
    if sort.endswith("deadline"):
        found = await page_by_time(connection, statement, e.legal_deadline, e.id, position, latest_first=descends)
    else:
        found = await page(connection, statement, e.id, position, lambda row: row, newest_first=descends)
    return Page(items=await _requests(connection, found.items, now, view), next_cursor=found.next_cursor)


async def count(connection: AsyncConnection, view: View, filters: Filters, now: datetime) -> ErasureCount:
    wanted = _wanted(view, filters).subquery()
    w, number = wanted.c, sa.func.count()
    is_open = w.status.not_in(SETTLED)
    is_soon = is_open & (w.legal_deadline >= now) & (w.legal_deadline < now + DUE_SOON)
    by_status = await connection.execute(sa.select(w.status, number).group_by(w.status).order_by(w.status))
    found = {row[0]: row[1] for row in by_status}
    mine = sa.select(number).where(t.erasures.c.id.in_(sa.select(w.id)), _awaits(view))
    return ErasureCount(
        total=sum(found.values()),
        by_status=found,
        awaiting_my_approval=(await connection.execute(mine)).scalar_one(),
        overdue=(await connection.execute(sa.select(number).where(is_open, w.legal_deadline < now))).scalar_one(),
        due_within_7_days=(await connection.execute(sa.select(number).where(is_soon))).scalar_one(),
    )


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


def _wanted(view: View, filters: Filters) -> sa.Select[Any]:
    e, s, line = t.erasures.c, t.subjects.c, t.lines.c
    statement, of_request = _visible(view), s.erasure_id == e.id
    if filters.statuses:
        statement = statement.where(e.status.in_(filters.statuses))
    if filters.subject is not None:
        statement = statement.where(sa.exists().where(of_request, s.name == filters.subject))
    if filters.run_id is not None:
        in_run = t.members.c.cohort_id.in_(sa.select(t.cohorts.c.id).where(t.cohorts.c.run_id == filters.run_id))
        touches = sa.exists().where(line.erasure_id == e.id, line.run_id == filters.run_id)
        will = sa.exists().where(of_request, s.client_id == t.members.c.client_id, in_run)
        statement = statement.where(touches | (e.fenced_at.is_(None) & e.status.not_in(SETTLED) & will))
    if filters.due_before is not None:
        statement = statement.where(e.status.not_in(SETTLED), e.legal_deadline < filters.due_before)
    return statement.where(_awaits(view)) if filters.awaits_me else statement


def _awaits(view: View) -> sa.ColumnElement[bool]:
    """Requests that the caller may decide now: `may_decide` in SQL."""
    e, decider = t.erasures.c, view.decider
    if decider is None:
        return sa.false()
    own = [str(credential_id) for credential_id in (decider.credential_id, *view.made_by)]
    filer, person = (sa.func.coalesce(e.filed_by[name].as_string(), "") for name in ("credential_id", "subject"))
    is_another: sa.ColumnElement[bool] = filer.not_in(own)
    if decider.subject is not None:
        is_another = sa.case((person != "", person != decider.subject), else_=is_another)
    return (e.status == "awaiting_approval") & (~e.four_eyes | is_another)


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


async def _requests(
    connection: AsyncConnection, rows: Sequence[sa.Row[Any]], now: datetime, view: View
) -> list[ErasureRequest]:
    ids = [row.id for row in rows]
    subjects, lines = await _subjects(connection, ids), await _lines(connection, ids)
    ordered = await exclusions.of_requests(connection, ids)
    return [
        ErasureRequest(
            **{name: value for name, value in row._mapping.items() if name in _AS_STORED},
            **_people(row, view),
            subjects=subjects.get(row.id, []),
            days_left=None if row.status in SETTLED else (row.legal_deadline - now).days,
            lines=lines.get(row.id, []),
            exclusions=ordered.get(row.id, []),
        )
        for row in rows
    ]


_PEOPLE: Final = CODECS[Erasure]
_AS_STORED: Final = ErasureRequest.model_fields.keys() - {"filed_by", "extension"}


def _people(row: sa.Row[Any], view: View) -> dict[str, Any]:
    """Who filed it, who decided it and extended its deadline, and whether the caller may decide it."""
    filer: Party | None = _PEOPLE["filed_by"].read(row.filed_by) if row.filed_by is not None else None
    ruling: Ruling | None = _PEOPLE["ruling"].read(row.ruling) if row.ruling is not None else None
    granted: Extension | None = _PEOPLE["extension"].read(row.extension) if row.extension is not None else None
    decider = view.decider if row.status == "awaiting_approval" else None
    return {
        "filed_by": _actor(filer) if filer is not None else None,
        "decision": ruling.outcome if ruling is not None else None,
        "decided_by": _actor(ruling.by) if ruling is not None else None,
        "decided_at": ruling.at if ruling is not None else None,
        "decision_reason": ruling.reason if ruling is not None else None,
        "approvable_by_me": decider is not None and (not row.four_eyes or may_decide(filer, decider, view.made_by)),
        "extension": _extension(granted) if granted is not None else None,
    }


def _extension(granted: Extension) -> wire.Extension:
    return wire.Extension(
        until=granted.until,
        reason=granted.reason,
        at=granted.at,
        by=_actor(granted.by),
        deadline_before=granted.deadline_before,
    )


def _actor(party: Party) -> Actor:
    return Actor(credential_id=party.credential_id, role=party.role, label=party.label, person=party.person)
