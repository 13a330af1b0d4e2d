"""Which schema the database has, which it should have, and the way from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

import migrations
from coordinator.store import tables
from coordinator.store.database import Database

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


async def pending(database: Database) -> str | None:
    """What to tell the operator when the schema is not this version's; None when it is."""
    have, want = await current(database), newest()
    if have == want:
        return None
    return f"the database's schema is {have or 'empty'} and this version needs {want}: run `lethe db upgrade`"


async def upgrade(database: Database) -> None:
    """Bring the schema up to date; a no-op when it is. Replicas that start together wait for each other."""

    from alembic import command

    def run(connection: sa.Connection) -> None:
        if not database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7205759403792793600)"))
        alembic = config()
        alembic.attributes["connection"] = connection
        command.upgrade(alembic, "head")

    await _in_transaction(database, run)


async def create(database: Database) -> None:
    """All tables at once, without the history of revisions: for a database that lives as long as an experiment."""
    await _in_transaction(database, tables.metadata.create_all)


async def _in_transaction(database: Database, run: Callable[[sa.Connection], Any]) -> None:
    async with database.write() as connection:
        await connection.run_sync(run)
