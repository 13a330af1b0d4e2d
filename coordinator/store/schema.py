"""Which schema the database has, which it should have, and the way from one to the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

import migrations
from coordinator.store.database import Database
from coordinator.store.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config


def config() -> Config:
    from alembic.config import Config  # Alembic is needed to change the schema, not to see that it is current

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


def newest() -> str:
    return migrations.NEWEST


async def current(database: Database) -> str | None:
    """The database's revision; None: it is empty."""
    async with database.read() as connection:
        return await connection.run_sync(_revision)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """Why this release cannot work on the database, and what its operator can do about it."""

    reason: str
    next_step: str


async def fault(database: Database) -> SchemaFault | None:
    """What to tell the operator when the schema is not this release's; None when it is."""
    have, want = await current(database), newest()
    if have is not None and have not in migrations.REVISIONS:
        reason = f"the database's schema is {have}, and this release knows none later than {want}"
        return SchemaFault(reason, "install the release that last used this database, or restore a backup made before")
    if have != want:
        reason = f"the database's schema is {have or 'empty'} and this release needs {want}"
        return SchemaFault(reason, "lethe db upgrade")
    if absent := await missing(database):
        reason = f"the database says that its schema is {have}, but it lacks {', '.join(absent)}"
        step = "it was made by a development version: restore a backup made by a release, or begin with a new database"
        return SchemaFault(reason, step)
    return None


async def missing(database: Database) -> list[str]:
    """The tables and columns of this release that the database does not have, whatever its revision says."""
    absent = _columns_of_release() - await _columns_of(database)
    return sorted(f"{table}.{column}" for table, column in absent)


async def fingerprint(database: Database) -> str:
    """Short, and equal for databases that have the same tables with the same columns."""
    return _digest(await _columns_of(database))


def release_fingerprint() -> str:
    return _digest(_columns_of_release())


def _columns_of_release() -> frozenset[tuple[str, str]]:
    return frozenset((table.name, column.name) for table in metadata.tables.values() for column in table.columns)


async def _columns_of(database: Database) -> frozenset[tuple[str, str]]:
    """The columns of tables that this release knows; others (blobs beside the rows, an operator's own) do not count."""

    def read(connection: sa.Connection) -> frozenset[tuple[str, str]]:
        inspector = sa.inspect(connection)
        known = set(inspector.get_table_names()) & set(metadata.tables)
        found = inspector.get_multi_columns(filter_names=sorted(known)) if known else {}
        return frozenset((name, column["name"]) for (_, name), columns in found.items() for column in columns)

    async with database.read() as connection:
        columns: frozenset[tuple[str, str]] = await connection.run_sync(read)
        return columns


def _digest(columns: Iterable[tuple[str, str]]) -> str:
    return hashlib.sha256("\n".join(f"{table}.{column}" for table, column in sorted(columns)).encode()).hexdigest()[:16]


async def upgrade(database: Database) -> None:
    """Bring the schema up to date; a no-op when it is. Replicas that start together wait for each other. A database
    that says it is newer is left alone: `fault` tells why it cannot be used."""

    from alembic import command

    def run(connection: sa.Connection) -> None:
        if not database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7205759403792793600)"))
        if _revision(connection) not in (None, *migrations.REVISIONS):
            return
        alembic = config()
        alembic.attributes["connection"] = connection
        command.upgrade(alembic, "head")

    await _in_transaction(database, run)


async def create(database: Database) -> None:
    """All tables at once, without the history of revisions: for a database that lives as long as an experiment."""
    await _in_transaction(database, metadata.create_all)


async def _in_transaction(database: Database, run: Callable[[sa.Connection], Any]) -> None:
    async with database.write() as connection:
        await connection.run_sync(run)
