"""SQLite on the event loop's own thread.

SQLite answers in microseconds; sending each statement to a thread and back costs more than the statement. So statements
run inline, and only a commit, which waits for the disk, goes to a thread.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool, StaticPool

from coordinator.store.documents import from_text, to_text
from coordinator.store.gate import MARK_QUERY, Gate, Mark
from services.core.private_files import FILE_MODE

T = TypeVar("T")
PRAGMAS: Final = (
    "busy_timeout=5000",
    "journal_mode=WAL",
    "busy_timeout=0",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",  # what a row no longer holds is overwritten in its page, whatever the build's default
)
BUSY_ATTEMPTS: Final = 200
"""How often to ask for the write lock, up to 50 ms apart, before giving up (about ten seconds)."""


class LogInUse(Exception):
    """Another process reads or writes all the time: the write-ahead log could not be emptied."""


class SqliteConnection:
    """The part of SQLAlchemy's `AsyncConnection` that the store uses."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection, self.driver = connection, driver(connection)
        self._is_hasty = False

    async def execute(
        self, statement: sa.Executable, parameters: Mapping[str, Any] | list[Mapping[str, Any]] | None = None
    ) -> sa.CursorResult[Any]:
        return self._connection.execute(statement, parameters)

    def commit_in_haste(self, is_hasty: bool) -> None:
        """Whether its next commits do not wait for the disk: they outlive the process, and the machine if a commit that
        waits follows."""
        if is_hasty != self._is_hasty:
            run(self.driver, f"PRAGMA synchronous={'NORMAL' if is_hasty else 'FULL'}")
            self._is_hasty = is_hasty

    def close(self) -> None:
        self._connection.close()

    async def run_sync(self, work: Callable[[sa.Connection], T]) -> T:
        return work(self._connection)


class Sqlite:
    """One open connection serves all readers, as each statement sees what is committed; another serves the writer."""

    def __init__(self, path: str, *, is_scratch: bool = False, gate: Gate | None = None) -> None:
        is_in_memory = path in ("", ":memory:")
        self._path, self._gate = path, gate or Gate()
        self._engine = sa.create_engine(
            "sqlite://",
            creator=lambda: _connect(path, is_scratch),
            poolclass=StaticPool if is_in_memory else NullPool,
            json_serializer=to_text,
            json_deserializer=from_text,
            hide_parameters=True,
        )
        self._is_scratch = is_scratch
        self._writing = asyncio.Lock()
        self._open: dict[str, SqliteConnection] = {}
        self._file: tuple[int, int] | None = None
        self._outdated: list[SqliteConnection] = []
        """Connections to a file that is not there any more; others may still use them."""
        self.num_opened = 0
        """Connections that were made so far."""

    @asynccontextmanager
    async def write(self, *, is_durable: bool = True) -> AsyncIterator[SqliteConnection]:
        """One transaction; commits when the block ends well. There is one writer at a time: others wait in line."""
        is_hasty = not is_durable and not self._is_scratch
        async with self._writing:
            with self._kept("write") as connection:
                connection.commit_in_haste(is_hasty)
                await _begin(connection.driver)
                try:
                    yield connection
                    if is_durable and not self._is_scratch:
                        await _commit(connection.driver)
                    else:
                        run(connection.driver, "COMMIT")
                except BaseException:
                    with suppress(sa.exc.SQLAlchemyError):
                        run(connection.driver, "ROLLBACK")
                    raise

    @asynccontextmanager
    async def read(self) -> AsyncIterator[SqliteConnection]:
        with self._kept("read") as connection:
            yield connection

    def was_replaced(self) -> bool:
        """Whether the file is another one since it was opened. Then that one is opened next."""
        found = file_of(self._path)
        if found is None or self._file in (None, found):  # none: what is open is better than an empty one
            return False
        self._file = None
        self._outdated += self._open.values()
        self._open.clear()
        return True

    async def forget_pages(self) -> None:
        """Empty the write-ahead log, which holds pages as they were before the last changes."""
        async with self._writing:
            with self._kept("write") as connection:
                for attempt in range(BUSY_ATTEMPTS):
                    if await _in_thread(_empty_log, connection.driver):
                        return
                    await asyncio.sleep(min(0.05, 0.001 * 2**attempt))
        raise LogInUse("the database's write-ahead log is in use by another process all the time")

    def close(self) -> None:
        for connection in (*self._open.values(), *self._outdated):
            connection.close()
        self._open.clear()
        self._outdated.clear()
        self._engine.dispose()

    @contextmanager
    def _kept(self, use: str) -> Iterator[SqliteConnection]:
        """After trouble with a connection the next in line opens another."""
        connection = self._open.get(use)
        if connection is None:
            opened = self._engine.connect()
            self.num_opened += 1
            opened.begin()  # says nothing to SQLite: whoever uses it finds a transaction and leaves its end to us
            connection = self._open[use] = SqliteConnection(opened)
            self._file = self._file or file_of(self._path)
            self._gate.admits(lambda: _mark_of(connection.driver))
        try:
            yield connection
        except sa.exc.SQLAlchemyError:
            if self._open.get(use) is connection:
                del self._open[use]
                with suppress(sa.exc.SQLAlchemyError):
                    connection.close()
            raise


def driver(connection: sa.Connection) -> sqlite3.Connection:
    """The driver's own connection below SQLAlchemy's."""
    own = connection.connection.driver_connection
    assert isinstance(own, sqlite3.Connection)
    return own


def run(connection: sqlite3.Connection, text: str) -> Any:
    """One word to the driver, like COMMIT; the first row of its answer."""
    try:
        return connection.execute(text).fetchone()
    except sqlite3.Error as error:
        raise sa.exc.DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True) from error


def _connect(path: str, is_scratch: bool) -> sqlite3.Connection:
    """Autocommit: transactions are opened and closed by explicit statements. A busy database answers at once. The file
    is its owner's alone; those that SQLite puts beside it get its mode.

    A file that exists is not touched: to close it here would take the locks of this process's other connections away,
    and the next process to leave the database would remove the write-ahead log that they go on writing to."""
    if path not in ("", ":memory:"):
        with suppress(OSError):  # it exists; or SQLite finds better words
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=1000)
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    if is_scratch:
        connection.execute("PRAGMA synchronous=OFF")
    return connection


def file_of(path: str) -> tuple[int, int] | None:
    """Which file it is; None: there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _mark_of(connection: sqlite3.Connection) -> Mark | None:
    try:
        row = run(connection, MARK_QUERY)
    except OperationalError as error:
        if "no such table" not in str(error):
            raise
        return None  # an older schema: whoever compares says so
    return None if row is None else Mark(*row)


async def _begin(connection: sqlite3.Connection) -> None:
    """Wait for other processes' turn to write without holding up this one's event loop."""
    for attempt in range(BUSY_ATTEMPTS):
        try:
            run(connection, "BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            if "locked" not in str(error) or attempt == BUSY_ATTEMPTS - 1:
                raise
            await asyncio.sleep(min(0.05, 0.001 * 2**attempt))


async def _commit(connection: sqlite3.Connection) -> None:
    await _in_thread(run, connection, "COMMIT")


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run to the end, even when whoever waits is cancelled: SQLite must not be used otherwise meanwhile."""
    working = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


def _empty_log(connection: sqlite3.Connection) -> bool:
    """False: somebody is in the way."""
    is_busy, _, _ = run(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    return not is_busy
