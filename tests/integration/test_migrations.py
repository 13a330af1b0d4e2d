"""The migrations make the schema that the code expects, on both back ends, from nothing and back to nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from coordinator.blobs import postgres as blob_tables
from coordinator.store import schema, tables
from coordinator.store.database import Database

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'lethe.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


async def _run(database: Database, work: Callable[[sa.Connection], Any]) -> Any:
    async with database.write() as connection:
        return await connection.run_sync(work)


async def test_upgrading_an_empty_database_gives_the_schema_of_the_code(url: str) -> None:
    database = Database(url)
    try:
        assert "lethe db upgrade" in (await schema.pending(database) or "")
        await schema.upgrade(database)
        assert await schema.pending(database) is None
        expected: Any = [tables.metadata, blob_tables.metadata]
        assert await _run(database, lambda c: compare_metadata(MigrationContext.configure(c), expected)) == []
    finally:
        await database.close()


async def test_upgrading_twice_changes_nothing_and_downgrading_leaves_nothing(url: str) -> None:
    database = Database(url)

    def downgrade(connection: sa.Connection) -> None:
        config = schema.config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")

    try:
        await schema.upgrade(database)
        await schema.upgrade(database)
        await _run(database, downgrade)
        left = await _run(database, lambda c: set(sa.inspect(c).get_table_names()))
        assert left <= {"alembic_version"}
    finally:
        await database.close()
