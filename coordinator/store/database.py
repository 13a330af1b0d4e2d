"""Connections and transactions on SQLite or Postgres."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

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
_CLOCK = sa.select(sa.func.clock_timestamp())
_HASTY = _CLOCK.add_columns(sa.func.set_config("synchronous_commit", "off", True))
TRUSTED_S: Final = 1.0
"""How long a connection is used again without asking whether it is alive, and the database's clock is known without
asking for it."""
_STATEMENTS_PREPARED: Final = 500
"""Statements prepared on each connection: more than the store has, each for lists of a few lengths."""


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
        self._num_lost = 0
        if self._postgres is not None:
            sa.event.listen(self._postgres.sync_engine.pool, "invalidate", self._note_lost)
            self._reading = self._postgres.execution_options(isolation_level="AUTOCOMMIT")
        self._asked_at, self._answered = float("-inf"), datetime.min.replace(tzinfo=UTC)
        self._begun_at: WeakKeyDictionary[AsyncConnection, datetime] = WeakKeyDictionary()
        """The instants of transactions that were told theirs when they began."""

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

    @property
    def generation(self) -> tuple[int, int]:
        """Changes when a connection is lost, or may lead to another database than before."""
        return self.gate.generation, self.num_lost

    @property
    def num_lost(self) -> int:
        """Grows when a connection is lost: the server may have been stopped, and forgotten what was not durable."""
        return self._num_lost if self._sqlite is None else self._sqlite.num_opened

    @asynccontextmanager
    async def write(self, *, is_durable: bool = True) -> AsyncIterator[AsyncConnection]:
        """One transaction; commits when the block ends well. `is_durable=False`, for what can be had again, like a
        lease: do not wait for the disk; the last such commits may be lost with the database's host."""
        async with self._admitted(
            lambda: self.engine.begin() if self._sqlite is None else self._sqlite.write(is_durable=is_durable)
        ) as connection:
            if not is_durable and self._sqlite is None:
                instant = (await connection.execute(_HASTY)).scalar_one()
                self._begun_at[connection] = self._noted(instant)
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for queries. Each sees what is committed; there is no transaction around them."""
        async with self._admitted(
            lambda: self._reading.connect() if self._sqlite is None else self._sqlite.read()
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

    @asynccontextmanager
    async def trial(self) -> AsyncIterator[AsyncConnection]:
        """A connection to load a slice that is decided on for show. What it locks stays as it is until the end; nothing
        done on it is kept."""
        async with self._admitted(
            lambda: self.engine.connect() if self._sqlite is None else self._sqlite.read()
        ) as connection:
            yield connection

    def _note_lost(self, *told: Any) -> None:
        self._num_lost += 1

    async def now(self, connection: AsyncConnection) -> datetime:
        """The instant of this transaction: the database's clock, so that replicas agree on leases."""
        if self._clock is not None:
            return self._clock()
        if self.is_sqlite:
            return datetime.now(UTC)
        if (begun_at := self._begun_at.get(connection)) is not None:
            return begun_at
        return self._noted((await connection.execute(_CLOCK)).scalar_one())

    def _noted(self, instant: datetime) -> datetime:
        self._asked_at, self._answered = time.monotonic(), instant.astimezone(UTC)
        return self._answered

    async def about_now(self, connection: AsyncConnection) -> datetime:
        """Like `now`, give or take a few milliseconds: for whoever looks whether something is due, and decides nothing
        by the order of instants."""
        passed = time.monotonic() - self._asked_at
        return self._answered + timedelta(seconds=passed) if passed < TRUSTED_S else await self.now(connection)

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
        json_serializer=to_text,
        json_deserializer=from_text,
        pool_timeout=5,
        connect_args={
            "timeout": 5,
            "command_timeout": 30,
            "server_settings": settings,
            "prepared_statement_cache_size": _STATEMENTS_PREPARED,
        },
    )
    attend(engine.sync_engine)
    _ask_idle_connections(engine.sync_engine)
    gate.attend(engine.sync_engine)
    return engine


def _ask_idle_connections(engine: sa.Engine) -> None:
    """See to it that a connection which is known to be lost, or was not used for a while and does not answer, is not
    used, and that all others are made anew then."""

    def note(connection: Any, record: Any) -> None:
        record.info["used_at"] = time.monotonic()

    def ask(connection: Any, record: Any, proxy: Any) -> None:
        if connection.driver_connection.is_closed():
            raise sa.exc.InvalidatePoolError("the connection was lost")
        if time.monotonic() - record.info["used_at"] < TRUSTED_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except Exception as error:
            raise sa.exc.InvalidatePoolError("the connection was lost") from error

    sa.event.listen(engine, "connect", note)
    sa.event.listen(engine, "checkin", note)
    sa.event.listen(engine, "checkout", ask)
