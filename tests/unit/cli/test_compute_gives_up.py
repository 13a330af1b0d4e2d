"""A compute process that cannot do its work ends, and says why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.runtime.settings import Settings
from coordinator.store import schema
from coordinator.store.database import Database
from lethe.commands.compute import _compute
from lethe.failures import CommandFailed

pytestmark = pytest.mark.anyio


async def test_compute_whose_work_dies_again_and_again_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.runtime.supervision.LONGEST_PAUSE_S", 0.001)
    settings = Settings(home=tmp_path)
    database = Database(settings.url)
    await schema.upgrade(database)
    computing = asyncio.create_task(_compute(settings))
    while "kernels" not in {task.get_name() for task in asyncio.all_tasks()}:  # noqa: ASYNC110 - it has no bell
        await asyncio.sleep(0.01)
    async with database.write() as connection:
        await connection.execute(sa.text("ALTER TABLE jobs RENAME TO hidden"))
    await database.close()
    with pytest.raises(CommandFailed, match="kernels died 10 times in a row: it died of OperationalError"):
        await computing
