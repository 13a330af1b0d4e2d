"""The migrations make the schema that the code expects, on both back ends, from nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from coordinator.blobs import postgres as blob_tables
from coordinator.store import schema, tables
from coordinator.store.database import Database

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'lethe.db'}"
    found: str = request.getfixturevalue("empty_postgres_url")
    return found


async def _run(database: Database, work: Callable[[sa.Connection], Any]) -> Any:
    async with database.write() as connection:
        return await connection.run_sync(work)


async def test_upgrading_an_empty_database_gives_the_schema_of_the_code(url: str) -> None:
    database = Database(url)
    try:
        before = await schema.fault(database)
        assert before is not None and "lethe db upgrade" in before.next_step
        await schema.upgrade(database)
        assert await schema.fault(database) is None
        assert await schema.fingerprint(database) == schema.release_fingerprint()
        expected: Any = [tables.metadata, blob_tables.metadata]
        assert await _run(database, lambda c: compare_metadata(MigrationContext.configure(c), expected)) == []
    finally:
        await database.close()


async def test_upgrading_twice_changes_nothing_and_one_origin_cannot_be_taken_back(url: str) -> None:
    """What is sealed under keys that an earlier release does not know it cannot read: the way back is a backup."""
    database = Database(url)

    def downgrade(connection: sa.Connection) -> None:
        config = schema.config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")

    try:
        await schema.upgrade(database)
        before = await schema.fingerprint(database)
        await schema.upgrade(database)
        with pytest.raises(NotImplementedError, match="backup"):
            await _run(database, downgrade)
        assert await schema.fault(database) is None
        assert await schema.fingerprint(database) == before
    finally:
        await database.close()


async def test_a_missing_column_is_named_although_the_revision_is_current(url: str) -> None:
    database = Database(url)
    try:
        await schema.upgrade(database)
        await _run(database, lambda c: c.execute(sa.text("ALTER TABLE clients DROP COLUMN agent_version")))
        await schema.upgrade(database)
        found = await schema.fault(database)
        assert found is not None and found.reason.endswith("it lacks clients.agent_version")
        assert "restore a backup" in found.next_step
        assert await schema.fingerprint(database) != schema.release_fingerprint()
    finally:
        await database.close()


async def test_a_database_of_a_later_release_is_refused_and_left_alone(url: str) -> None:
    database = Database(url)
    try:
        await schema.upgrade(database)
        await _run(database, lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")))
        await schema.upgrade(database)
        found = await schema.fault(database)
        assert found is not None and "9999" in found.reason and "install the release" in found.next_step
        assert await schema.current(database) == "9999"
    finally:
        await database.close()


def test_every_revision_is_listed_and_a_released_one_never_changes() -> None:
    script = ScriptDirectory.from_config(schema.config())
    assert tuple(reversed([revision.revision for revision in script.walk_revisions()])) == migrations.REVISIONS
    folder = Path(migrations.__file__).parent
    for line in (folder / "frozen.sha256").read_text().splitlines():
        digest, name = line.split()
        found = hashlib.sha256((folder / "versions" / name).read_bytes()).hexdigest()
        assert found == digest, f"{name} was released and must not be edited: add a revision"
