"""Connections and transactions on SQLite or Postgres, and the line between "away" and "wrong"."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from coordinator.store.address import parse_address
from coordinator.store.sqlite import Sqlite
from services.core.errors import InvariantBroken

STUCK_TRANSACTION_S = 10
"""Postgres ends a transaction whose process went silent (stopped, partitioned) after this long, and frees its locks."""
_HASTY = sa.text("SET LOCAL synchronous_commit TO off")


class Unavailable(Exception):
    """The database cannot be reached, or gave up on a transaction; nothing is known to have changed. Try again."""


class Database:
    def __init__(
        self,
        url: str,
        pool_size: int = 10,
        *,
        clock: Callable[[], datetime] | None = None,
        is_scratch: bool = False,
    ) -> None:
        """For experiments on SQLite: `clock` says what time it is; `is_scratch` does not wait for the disk, so that
        what is committed outlives the process but not the machine."""
        self.url = parse_address(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._clock = clock
        self._sqlite = Sqlite(self.url.database or "", is_scratch=is_scratch) if self.is_sqlite else None
        self._postgres = None if self.is_sqlite else _postgres_engine(self.url, pool_size)

    @property
    def engine(self) -> AsyncEngine:
        """Postgres: for the blobs that are kept beside the rows."""
        if self._postgres is None:
            raise InvariantBroken("SQLite has no pool of connections")
        return self._postgres

    @asynccontextmanager
    async def write(self, *, is_durable: bool = True) -> AsyncIterator[AsyncConnection]:
        """One transaction; commits when the block ends well. `is_durable=False`, for what can be had again, like a
        lease: do not wait for the disk; the last such commits may be lost with the database's host."""
        opening = self.engine.begin() if self._sqlite is None else self._sqlite.write(is_durable=is_durable)
        async with _translated(), opening as connection:
            if not is_durable and self._sqlite is None:
                await connection.execute(_HASTY)
            yield cast(AsyncConnection, connection)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for queries; nothing done on it is kept."""
        opening = self.engine.connect() if self._sqlite is None else self._sqlite.read()
        async with _translated(), opening as connection:
            yield cast(AsyncConnection, connection)

    async def now(self, connection: AsyncConnection) -> datetime:
        """The instant of this transaction: the database's clock, so that replicas agree on leases."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return datetime.now(UTC)
        instant = (await connection.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
        return instant.astimezone(UTC)  # type: ignore[no-any-return]

    async def close(self) -> None:
        if self._sqlite is not None:
            self._sqlite.close()
        if self._postgres is not None:
            await self._postgres.dispose()


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
