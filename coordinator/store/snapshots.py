"""The database as it was at one instant, for backups: which blobs were stored then, and a copy of all rows. SQLite is
copied by its own backup, Postgres by `pg_dump`, which must be as new as the server."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from coordinator.store import tables as t
from coordinator.store.database import Database

_OF_OTHER_ROOMS: Final = ("alembic_version", "blob_chunks", "blob_contents")
_STORED: Final = "SELECT id, federation_id, digest, data_key IS NULL FROM blobs WHERE status = 'stored'"


class ToolFailed(Exception):
    """A program of Postgres is not at hand, or refused; says what to do."""


@dataclass(frozen=True, slots=True)
class StoredName:
    """What the bytes of a blob lie under."""

    blob_id: UUID
    owner: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    revision: str
    stored: Sequence[StoredName]
    copy_to: Callable[[Path], Any]
    """Write all rows, as they were, to a new file. A coroutine function."""


@asynccontextmanager
async def snapshot(database: Database) -> AsyncIterator[Snapshot]:
    """Others read and write meanwhile; who looks here sees nothing of it."""
    async with _of_sqlite(database) if database.is_sqlite else _of_postgres(database) as found:
        yield found


@asynccontextmanager
async def _of_sqlite(database: Database) -> AsyncIterator[Snapshot]:
    with closing(_connect(database.url.database or "")) as connection:
        connection.execute("BEGIN")
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        stored = [_name(UUID(row[0]), UUID(row[1]), *row[2:]) for row in connection.execute(_STORED)]

        async def copy_to(path: Path) -> None:
            def copy() -> None:
                with closing(_connect(str(path))) as target:
                    connection.backup(target)
                    target.execute("PRAGMA journal_mode=DELETE")  # all of it in one file

            await asyncio.to_thread(copy)

        yield Snapshot(revision, stored, copy_to)


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)


@asynccontextmanager
async def _of_postgres(database: Database) -> AsyncIterator[Snapshot]:
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        await connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        snapshot_id = (await connection.execute(sa.text("SELECT pg_export_snapshot()"))).scalar_one()
        revision = (await connection.execute(sa.text("SELECT version_num FROM alembic_version"))).scalar_one()
        stored = [_name(*row) for row in await connection.execute(sa.text(_STORED))]

        async def copy_to(path: Path) -> None:
            wanted = ("--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot_id}", f"--file={path}")
            await run_tool(database.url, "pg_dump", *wanted)

        yield Snapshot(revision, stored, copy_to)
        await connection.rollback()


def _name(blob_id: UUID, owner: UUID, digest: str, is_plain: bool) -> StoredName:
    return StoredName(blob_id, owner, digest.removeprefix("sha256:") if is_plain else blob_id.hex)


# --- putting back -----------------------------------------------------------------------------------------------------


async def has_tables(database: Database) -> bool:
    """Postgres: whether it holds an installation."""
    async with database.read() as connection:
        return await connection.run_sync(lambda inner: sa.inspect(inner).has_table("alembic_version"))


async def put_back(database: Database, dump: Path) -> None:
    """Postgres: in place of whatever of ours is there."""
    async with database.write() as connection:
        for name in (*t.metadata.tables, *_OF_OTHER_ROOMS):
            await connection.execute(sa.text(f'DROP TABLE IF EXISTS "{name}" CASCADE'))
    wanted = ("--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error")
    await run_tool(database.url, "pg_restore", *wanted, file=dump)


async def run_tool(url: sa.URL, program: str, *options: str, file: Path | None = None) -> None:
    """A program of Postgres on this database; its password goes by the environment, where others do not see it."""
    version = "SHOW server_version tells which"
    if (place := shutil.which(program)) is None:
        raise ToolFailed(f"{program} is not in PATH: install the client programs of the server's version ({version})")
    where = {"host": url.host, "port": url.port, "username": url.username, "dbname": url.database}
    words = [place, "--no-password", *options, *(f"--{name}={value}" for name, value in where.items() if value)]
    words += [] if file is None else [str(file)]
    environment = dict(os.environ)
    if url.password:
        environment["PGPASSWORD"] = str(url.password)
    if isinstance(mode := url.query.get("ssl"), str):
        environment["PGSSLMODE"] = mode
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, env=environment, stdout=pipe, stderr=pipe)
    _, said = await process.communicate()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or [f"it ended with {process.returncode}"]
        step = f"if it is older than the server ({version}), put the right one first in PATH"
        raise ToolFailed(f"{program} refused: {' '.join(lines)[:300]}; {step}")
