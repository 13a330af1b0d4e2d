"""Connections and transactions on SQLite or Postgres."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from coordinator.store.address import parse_address
from coordinator.store.documents import from_text, to_text
from coordinator.store.faults import TimedOut, Unavailable, attend, fault_of
from coordinator.store.gate import Gate, NotReady
from coordinator.store.sqlite import Sqlite
from services.core.errors import InvariantBroken

STUCK_TRANSACTION_S = 10
"""Postgres ends a transaction whose process went silent (stopped, partitioned) after this long, and frees its locks."""
__all__ = ["Database", "NotReady", "TimedOut", "Unavailable"]
_HASTY = sa.text("SET LOCAL synchronous_commit TO off")


C = TypeVar("C")


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
        self.gate = Gate()
        """Shut while the database may be older than the log of tombstones: `read` and `write` wait, then raise."""
        place = self.url.database or ""
        self._sqlite = Sqlite(place, is_scratch=is_scratch, gate=self.gate) if self.is_sqlite else None
        self._postgres = None if self.is_sqlite else _postgres_engine(self.url, pool_size, self.gate)

    @property
    def engine(self) -> AsyncEngine:
        """Postgres: for the blobs that are kept beside the rows."""
        if self._postgres is None:
            raise InvariantBroken("SQLite has no pool of connections")
        return self._postgres

    def past_the_gate(self) -> Database:
        """The same database for whoever compares it with the log of tombstones."""
        found = copy.copy(self)
        found.gate = Gate()
        return found

    def was_replaced(self) -> bool:
        """SQLite: whether its file is another one since it was opened; then that one is opened next."""
        return self._sqlite is not None and self._sqlite.was_replaced()

    @asynccontextmanager
    async def write(self, *, is_durable: bool = True) -> AsyncIterator[AsyncConnection]:
        """One transaction; commits when the block ends well. `is_durable=False`, for what can be had again, like a
        lease: do not wait for the disk; the last such commits may be lost with the database's host."""
        async with self._admitted(
            lambda: self.engine.begin() if self._sqlite is None else self._sqlite.write(is_durable=is_durable)
        ) as connection:
            if not is_durable and self._sqlite is None:
                await connection.execute(_HASTY)
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for queries; nothing done on it is kept."""
        async with self._admitted(
            lambda: self.engine.connect() if self._sqlite is None else self._sqlite.read()
        ) as connection:
            yield connection

    @asynccontextmanager
    async def _admitted(
        self, opening: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> AsyncIterator[AsyncConnection]:
        """A connection once the gate is open. One whose own making shut the gate is given back, and waits with the
        others."""
        while True:
            if not self.gate.is_open:
                await self.gate.passed()
            async with _translated(opening()) as connection:
                if self.gate.is_open:
                    yield cast(AsyncConnection, connection)
                    return

    async def now(self, connection: AsyncConnection) -> datetime:
        """The instant of this transaction: the database's clock, so that replicas agree on leases."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return datetime.now(UTC)
        instant = (await connection.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
        return instant.astimezone(UTC)  # type: ignore[no-any-return]

    async def forget_pages(self) -> None:
        """SQLite: leave no page in its log that holds what was deleted. In Postgres pages stay until they are vacuumed
        and their log is recycled."""
        if self._sqlite is not None:
            async with _translated(nullcontext()):
                await self._sqlite.forget_pages()

    async def close(self) -> None:
        if self._sqlite is not None:
            self._sqlite.close()
        if self._postgres is not None:
            await self._postgres.dispose()


@asynccontextmanager
async def _translated(opening: AbstractAsyncContextManager[C]) -> AsyncIterator[C]:
    """What `opening` opens; faults of the database as `Unavailable`."""
    is_open = False
    try:
        async with opening as connection:
            is_open = True
            yield connection
    except Exception as error:
        if (fault := fault_of(error, is_open=is_open)) is None or fault is error:
            raise
        raise fault from error


def _postgres_engine(url: sa.URL, pool_size: int, gate: Gate) -> AsyncEngine:
    settings = {
        "idle_in_transaction_session_timeout": f"{STUCK_TRANSACTION_S}s",
        "lock_timeout": f"{STUCK_TRANSACTION_S}s",
        "application_name": "lethe",
    }
    engine = create_async_engine(
        url,
        hide_parameters=True,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        json_serializer=to_text,
        json_deserializer=from_text,
        pool_timeout=5,
        connect_args={"timeout": 5, "command_timeout": 30, "server_settings": settings},
    )
    attend(engine.sync_engine)
    gate.attend(engine.sync_engine)
    return engine
