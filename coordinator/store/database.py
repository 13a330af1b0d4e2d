"""Connections and transactions on SQLite or Postgres, and the line between "away" and "wrong"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from coordinator.store import inline_sqlite

PRAGMAS = ("busy_timeout=5000", "journal_mode=WAL", "busy_timeout=0", "synchronous=FULL", "foreign_keys=ON")
BUSY_ATTEMPTS = 200
"""How often to ask for SQLite's write lock, up to 50 ms apart, before giving up (about ten seconds)."""
STUCK_TRANSACTION_S = 10
"""Postgres ends a transaction whose process went silent (stopped, partitioned) after this long, and frees its locks."""


class Unavailable(Exception):
    """The database cannot be reached, or gave up on a transaction; nothing is known to have changed. Try again."""


class Database:
    def __init__(self, url: str, pool_size: int = 10) -> None:
        self.url = sa.make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._write_lock = asyncio.Lock()
        self.engine = _sqlite_engine(self.url) if self.is_sqlite else _postgres_engine(self.url, pool_size)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction; commits when the block ends well. SQLite has one writer at a time, so wait in line here."""
        if not self.is_sqlite:
            async with _translated(), self.engine.begin() as connection:
                yield connection
            return
        async with self._write_lock, _translated(), self.engine.connect() as connection:
            await _begin_immediate(connection)
            try:
                yield connection
                await connection.exec_driver_sql("COMMIT")
            except BaseException:
                with suppress(sa.exc.SQLAlchemyError):  # a cancelled statement has closed the connection already
                    await connection.exec_driver_sql("ROLLBACK")
                raise

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for queries; nothing done on it is kept."""
        async with _translated(), self.engine.connect() as connection:
            yield connection

    async def now(self, connection: AsyncConnection) -> datetime:
        """The instant of this transaction: the database's clock, so that replicas agree on leases."""
        if self.is_sqlite:
            return datetime.now(UTC)
        instant = (await connection.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
        return instant.astimezone(UTC)  # type: ignore[no-any-return]

    async def close(self) -> None:
        await self.engine.dispose()


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, OSError, TimeoutError) as error:
        raise Unavailable(str(error)) from error
    except sa.exc.TimeoutError as error:
        raise Unavailable("no free database connection") from error
    except DBAPIError as error:
        if error.connection_invalidated or _sqlstate(error) in _TRANSIENT:
            raise Unavailable(str(error)) from error
        raise


_TRANSIENT = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55P03",  # lock not available
        "57P01",  # admin shutdown
        "57P02",  # crash shutdown
        "57P03",  # cannot connect now
        "25P03",  # idle in transaction too long
        "53300",  # too many connections
        "08000",
        "08003",
        "08006",
    }
)


def _sqlstate(error: DBAPIError) -> str | None:
    original: Any = error.orig
    return getattr(original, "sqlstate", None) or getattr(getattr(original, "__cause__", None), "sqlstate", None)


def _postgres_engine(url: sa.URL, pool_size: int) -> AsyncEngine:
    settings = {
        "idle_in_transaction_session_timeout": f"{STUCK_TRANSACTION_S}s",
        "lock_timeout": f"{STUCK_TRANSACTION_S}s",
        "application_name": "lethe",
    }
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        pool_timeout=5,
        connect_args={"timeout": 5, "command_timeout": 30, "server_settings": settings},
    )


def _sqlite_engine(url: sa.URL) -> AsyncEngine:
    path = url.database or ":memory:"

    async def creator(*_: Any, **__: Any) -> inline_sqlite.InlineConnection:
        return await inline_sqlite.connect(path)

    pool: dict[str, Any] = {"pool_size": 32, "max_overflow": 32} if path != ":memory:" else {"poolclass": StaticPool}
    engine = create_async_engine(url, async_creator=creator, **pool)

    @event.listens_for(engine.sync_engine, "connect")
    def _set_pragmas(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


async def _begin_immediate(connection: AsyncConnection) -> None:
    """Wait for other processes' turn to write without holding up this one's event loop."""
    for attempt in range(BUSY_ATTEMPTS):
        try:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            if "locked" not in str(error) or attempt == BUSY_ATTEMPTS - 1:
                raise
            await asyncio.sleep(min(0.05, 0.001 * 2**attempt))
