"""Pages of a listing: rows in the order of one unique key, and opaque cursors that say after which key to go on.

Identifiers are UUIDv7, so the order of ids is the order of creation.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
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
        raise Rejected("invalid-request", "cursor is not one that this listing gave out; start without one") from None
