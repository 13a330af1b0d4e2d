"""Pages of a listing: rows in the order of one unique key, and opaque cursors that say after which key to go on.

Identifiers are UUIDv7, so the order of ids is the order of creation.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.core.errors import Rejected
from services.wire.v1.resources import Page

Item = TypeVar("Item")
_LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Position:
    """Where a page starts and how long it may be."""

    limit: int = 50
    cursor: str | None = None


async def page(
    connection: AsyncConnection,
    statement: sa.Select[Any],
    key: sa.ColumnElement[Any],
    position: Position,
    make: Callable[[sa.Row[Any]], Item],
    *,
    newest_first: bool = False,
) -> Page[Item]:
    """`key` must be among the statement's columns and unique."""
    if position.cursor is not None:
        last = decode(position.cursor, key.type.python_type)
        statement = statement.where(key < last if newest_first else key > last)
    statement = statement.order_by(key.desc() if newest_first else key).limit(position.limit + 1)
    rows = (await connection.execute(statement)).all()
    shown = rows[: position.limit]
    next_cursor = encode(shown[-1]._mapping[key]) if len(rows) > len(shown) else None
    return Page(items=[make(row) for row in shown], next_cursor=next_cursor)


async def page_by_time(
    connection: AsyncConnection,
    statement: sa.Select[Any],
    at: sa.ColumnElement[datetime],
    key: sa.ColumnElement[Any],
    position: Position,
    *,
    latest_first: bool = False,
) -> Page[Any]:
    """Rows in the order of a time, and of their unique key where it is the same; both are among the columns."""
    if position.cursor is not None:
        instant, last = _instant_and_key(position.cursor)
        is_beyond, is_next = (at < instant, key < last) if latest_first else (at > instant, key > last)
        statement = statement.where(is_beyond | ((at == instant) & is_next))
    order = (at.desc(), key.desc()) if latest_first else (at, key)
    rows = (await connection.execute(statement.order_by(*order).limit(position.limit + 1))).all()
    shown = rows[: position.limit]
    last_shown = shown[-1]._mapping if len(rows) > len(shown) else None
    next_cursor = encode(f"{last_shown[at].isoformat()} {last_shown[key]}") if last_shown is not None else None
    return Page(items=list(shown), next_cursor=next_cursor)


def _instant_and_key(cursor: str) -> tuple[datetime, UUID]:
    instant, _, key = str(decode(cursor, str)).partition(" ")
    try:
        at = datetime.fromisoformat(instant)
        if at.tzinfo is None:
            raise ValueError("a time without a zone")
        return at, UUID(key)
    except ValueError:
        raise _no_cursor() from None


def encode(key: UUID | str | int) -> str:
    return base64.urlsafe_b64encode(str(key).encode()).decode().rstrip("=")


def decode(cursor: str, kind: type) -> Any:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        if "\0" in text:
            raise ValueError("no key holds a NUL")
        if kind is UUID:
            return UUID(text)
        if kind is int:
            return min(int(text[:20]), _LARGEST_INTEGER)
        return text
    except ValueError:
        raise _no_cursor() from None


def _no_cursor() -> Rejected:
    return Rejected("invalid-request", "cursor is not one that this listing gave out; start without one")
