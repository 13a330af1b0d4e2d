"""The feed of a federation: the events of all its runs and requests in one order.

Each run and each request has a journal of its own, numbered without gaps in the order of the commits. The feed says in
which order stretches of these journals follow each other. It is written when somebody looks, not with the events: those
who train never wait for a number that all of a federation share.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.journal import IN_BOTH
from coordinator.store import tables as t
from coordinator.store.paging import Position, decode, encode
from services.wire.v1.resources import Page
from services.wire.v1.views import FeedEvent

_s = t.feed_segments.c


async def is_behind(connection: AsyncConnection, federation_id: UUID) -> bool:
    """Whether events wait for their place in the feed."""
    return (await connection.execute(_waiting(federation_id).limit(1))).first() is not None


async def extend(connection: AsyncConnection, federation_id: UUID) -> None:
    """Give a place to all events that have none. Whoever loses a race gets an `IntegrityError`: then another process
    has just done it. For that the end of the feed has to be read before what is missing in it."""
    following = await head(connection, federation_id) + 1
    rows = []
    for row in await connection.execute(_waiting(federation_id)):
        segment = {"federation_id": federation_id, "first": following, "journal_id": row.id}
        rows.append({**segment, "is_request": row.is_request, "begins": row.shown + 1, "ends": row.newest})
        following += row.newest - row.shown
    if rows:
        await connection.execute(t.feed_segments.insert(), rows)


async def head(connection: AsyncConnection, federation_id: UUID) -> int:
    """The number of the newest event; 0: there is none."""
    last = sa.select(_s.first + _s.ends - _s.begins).where(_s.federation_id == federation_id)
    found = (await connection.execute(last.order_by(_s.first.desc()).limit(1))).scalar_one_or_none()
    return int(found or 0)


async def events(connection: AsyncConnection, federation_id: UUID, position: Position) -> Page[FeedEvent]:
    after = 0 if position.cursor is None else decode(position.cursor, int)
    newest = await head(connection, federation_id)
    found: list[FeedEvent] = []
    while not found and after < newest:  # a stretch may hold nothing but what requests tell as well
        until = min(newest, after + position.limit)
        found, after = await _told(connection, federation_id, after, until), until
    return Page(items=found, next_cursor=encode(after) if after < newest else None)


async def newest_events(connection: AsyncConnection, federation_id: UUID, position: Position) -> Page[FeedEvent]:
    """Like `events`, from the end."""
    newest = await head(connection, federation_id)
    found: list[FeedEvent] = []
    until = newest if position.cursor is None else min(newest, decode(position.cursor, int))
    while not found and until > 0:
        after = max(0, until - position.limit)
        found, until = await _told(connection, federation_id, after, until), after
    return Page(items=found[::-1], next_cursor=encode(until) if until > 0 else None)


async def _told(connection: AsyncConnection, federation_id: UUID, after: int, until: int) -> list[FeedEvent]:
    rows = await connection.execute(_between(federation_id, after, until))
    return [FeedEvent(**row._mapping) for row in rows]


def _waiting(federation_id: UUID) -> sa.Select[Any]:
    """Journals with events that have no place yet."""
    h, e, log = t.journal_heads.c, t.erasures.c, t.erasure_log.c
    runs = sa.select(h.run_id.label("id"), sa.false().label("is_request"), h.seq.label("newest"))
    runs = runs.join(t.runs, t.runs.c.id == h.run_id).where(t.runs.c.federation_id == federation_id)
    newest = sa.select(log.seq).where(log.erasure_id == e.id).order_by(log.seq.desc()).limit(1).scalar_subquery()
    requests = sa.select(e.id, sa.true().label("is_request"), newest.label("newest")).where(
        e.federation_id == federation_id
    )
    journals = sa.union_all(runs, requests).subquery("journals")
    ends = sa.select(_s.ends).where(_s.journal_id == journals.c.id).order_by(_s.begins.desc()).limit(1)
    shown = sa.func.coalesce(ends.scalar_subquery(), 0)
    return (
        sa.select(journals.c.id, journals.c.is_request, journals.c.newest, shown.label("shown"))
        .where(journals.c.newest > shown)
        .order_by(journals.c.id)
    )


def _between(federation_id: UUID, after: int, until: int) -> sa.CompoundSelect[Any]:
    """Events behind number `after`, up to number `until`. What a run's journal tells of a request is left to the log of
    the request."""
    j, log = t.journal.c, t.erasure_log.c
    of_runs = _stretch(
        federation_id,
        after,
        until,
        t.journal,
        j.run_id,
        (j.run_id, sa.null().label("erasure_id")),
    ).where(j.type.not_in(IN_BOTH))
    of_requests = _stretch(federation_id, after, until, t.erasure_log, log.erasure_id, (log.run_id, log.erasure_id))
    return sa.union_all(of_runs, of_requests).order_by("seq")


def _stretch(
    federation_id: UUID, after: int, until: int, journal: sa.Table, key: sa.Column[Any], about: tuple[Any, Any]
) -> sa.Select[Any]:
    x = journal.c
    offset = _s.first - _s.begins
    begin = sa.select(sa.func.max(_s.first)).where(_s.federation_id == federation_id, _s.first <= after + 1)
    shown = ((x.seq + offset).label("seq"), x.at, x.type, *about, x.cohort_id, x.data)
    return (
        sa.select(*shown)
        .join(t.feed_segments, _s.journal_id == key)
        .where(
            _s.federation_id == federation_id,
            _s.first >= sa.func.coalesce(begin.scalar_subquery(), 0),
            _s.first <= until,
            x.seq > after - offset,
            x.seq <= until - offset,
            x.seq + 0 >= _s.begins,  # not with the index: the bounds above are the narrow ones
            x.seq + 0 <= _s.ends,
        )
    )
