"""SQLite on the loop's own thread: transactions, cancellation, trouble."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.store import sqlite
from coordinator.store.sqlite import Sqlite

pytestmark = pytest.mark.anyio
COUNT = sa.text("SELECT count(*) FROM t")
ADD = sa.text("INSERT INTO t VALUES (7)")
FULL = 2


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Sqlite]:
    opened = Sqlite(str(tmp_path / "a.db"))
    async with opened.write() as connection:
        await connection.execute(sa.text("CREATE TABLE t (x)"))
    yield opened
    opened.close()


async def count(database: Sqlite) -> int:
    async with database.read() as connection:
        return int((await connection.execute(COUNT)).scalar() or 0)


async def test_a_reader_sees_what_is_committed_and_nothing_else(database: Sqlite) -> None:
    async with database.write() as connection:
        await connection.execute(ADD)
        assert await count(database) == 0
    assert await count(database) == 1


async def test_a_block_that_fails_changes_nothing_and_the_next_goes_on(database: Sqlite) -> None:
    with pytest.raises(sa.exc.OperationalError):
        async with database.write() as connection:
            await connection.execute(ADD)
            await connection.execute(sa.text("SELECT * FROM nowhere"))
    assert await count(database) == 0
    async with database.write() as connection:
        await connection.execute(ADD)
    assert await count(database) == 1


async def test_what_is_written_after_another_process_looked_in_is_there_for_the_next_one(
    database: Sqlite, tmp_path: Path
) -> None:
    """A backup, the doctor, or somebody with the command of SQLite. Had our connections lost their locks, the first of
    these to leave would take the write-ahead log with it, and all that we commit afterwards."""
    path = str(tmp_path / "a.db")
    looked = f"import sqlite3; c = sqlite3.connect({path!r}); print(*c.execute({COUNT.text!r}).fetchone()); c.close()"
    for num_rows in (1, 2, 3):
        async with database.write() as connection:
            await connection.execute(ADD)
            assert await count(database) == num_rows - 1, "by a second connection"
        found = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", looked])
        assert int(found) == num_rows


async def test_only_a_commit_in_haste_does_not_wait_for_the_disk(database: Sqlite) -> None:
    async def waits() -> bool:
        async with database.write() as connection:
            return bool((await connection.execute(sa.text("PRAGMA synchronous"))).scalar() == FULL)

    async with database.write(is_durable=False) as connection:
        await connection.execute(ADD)
        assert (await connection.execute(sa.text("PRAGMA synchronous"))).scalar() == FULL - 1
    assert await count(database) == 1
    assert await waits()
    with pytest.raises(sa.exc.OperationalError):
        async with database.write(is_durable=False) as connection:
            await connection.execute(sa.text("SELECT * FROM nowhere"))
    assert await waits()


async def test_a_cancelled_commit_is_carried_to_its_end(database: Sqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, at_once = threading.Event(), sqlite.run

    def slowly(connection: sqlite3.Connection, text: str) -> None:
        if text == "COMMIT":
            may_end.wait(5)
        at_once(connection, text)

    async def write() -> None:
        async with database.write() as connection:
            await connection.execute(ADD)

    monkeypatch.setattr(sqlite, "run", slowly)
    writing = asyncio.create_task(write())
    await asyncio.sleep(0.01)
    writing.cancel()
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await writing
    monkeypatch.undo()
    assert await count(database) == 1
    async with database.write() as connection:
        await connection.execute(ADD)
    assert await count(database) == 2


async def test_writers_of_two_processes_take_turns(database: Sqlite, tmp_path: Path) -> None:
    other = Sqlite(str(tmp_path / "a.db"))

    async def add_ten(one: Sqlite) -> None:
        for _ in range(10):
            async with one.write() as connection:
                await connection.execute(ADD)

    await asyncio.gather(add_ten(database), add_ten(other))
    other.close()
    assert await count(database) == 20


async def test_what_was_deleted_is_in_no_file(database: Sqlite, tmp_path: Path) -> None:
    words = sa.text("INSERT INTO t VALUES ('words-of-somebody-who-left')")

    def files_with_it() -> set[str]:
        return {path.name for path in tmp_path.iterdir() if b"words-of-somebody-who-left" in path.read_bytes()}

    async with database.read() as connection:
        assert (await connection.execute(sa.text("PRAGMA secure_delete"))).scalar() == 1
    async with database.write() as connection:
        await connection.execute(words)
    assert files_with_it() == {"a.db-wal"}
    await database.forget_pages()
    assert files_with_it() == {"a.db"}
    async with database.write() as connection:
        await connection.execute(sa.text("DELETE FROM t"))
    await database.forget_pages()
    assert files_with_it() == set()


async def test_a_log_that_another_process_reads_is_said_not_to_be_empty(
    database: Sqlite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_ATTEMPTS", 2)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM t").fetchall()
    async with database.write() as connection:
        await connection.execute(ADD)
    with pytest.raises(sqlite.LogInUse):
        await database.forget_pages()
    other.close()
    await database.forget_pages()
    assert await count(database) == 1
