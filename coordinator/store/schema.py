"""Which schema the database has, which it should have, and the way from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from coordinator.store.database import Database


def config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


def newest() -> str:
    revision = ScriptDirectory.from_config(config()).get_current_head()
    if revision is None:
        raise RuntimeError("the package contains no migrations")
    return revision


async def current(database: Database) -> str | None:
    """The database's revision; None: it is empty."""
    async with database.read() as connection:
        return await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())


async def pending(database: Database) -> str | None:
    """What to tell the operator when the schema is not this version's; None when it is."""
    have, want = await current(database), newest()
    if have == want:
        return None
    return f"the database's schema is {have or 'empty'} and this version needs {want}: run `lethe db upgrade`"


async def upgrade(database: Database) -> None:
    """Bring the schema up to date; a no-op when it is. Replicas that start together wait for each other."""

    def run(connection: sa.Connection) -> None:
        if not database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7205759403792793600)"))
        alembic = config()
        alembic.attributes["connection"] = connection
        command.upgrade(alembic, "head")

    await _in_transaction(database, run)


async def _in_transaction(database: Database, run: Callable[[sa.Connection], Any]) -> None:
    async with database.write() as connection:
        await connection.run_sync(run)
