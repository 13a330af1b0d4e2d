"""A SQLite driver that answers on the event loop's own thread.

aiosqlite sends every call to a thread and back, four times per statement; SQLite itself needs a few microseconds for
it. Here statements run inline and only a commit, which waits for the disk, goes to a thread. The classes show
SQLAlchemy's aiosqlite dialect the part of aiosqlite's interface that it uses.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any


class InlineCursor:
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    async def __aenter__(self) -> InlineCursor:
        return self

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> InlineCursor:
        if sql == "COMMIT":
            await _to_its_end(asyncio.ensure_future(asyncio.to_thread(self._cursor.execute, sql)))
        else:
            self._cursor.execute(sql, parameters)
        return self

    async def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> InlineCursor:
        self._cursor.executemany(sql, parameters)
        return self

    async def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    async def close(self) -> None:
        self._cursor.close()

    @property
    def description(self) -> Any:
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._cursor.lastrowid


class InlineConnection:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def cursor(self) -> InlineCursor:
        return InlineCursor(self._connection.cursor())

    async def create_function(self, *args: Any, **options: Any) -> None:
        self._connection.create_function(*args, **options)

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()

    async def close(self) -> None:
        self._connection.close()

    def stop(self) -> None:
        self._connection.close()


async def _to_its_end(working: asyncio.Future[Any]) -> None:
    """Whoever is cancelled meanwhile closes the connection next, and SQLite does not survive that under a commit."""
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


async def connect(path: str) -> InlineConnection:
    """Autocommit; transactions are opened and closed by explicit statements. A busy database answers at once."""
    return InlineConnection(sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False))
