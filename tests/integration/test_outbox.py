"""The order in which jobs leave the outbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from coordinator.engine.entities import Job
from coordinator.store import outbox, schema
from coordinator.store import tables as t
from coordinator.store.database import Database
from coordinator.store.rows import to_row

pytestmark = pytest.mark.anyio
FEDERATION = UUID(int=1)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def job(number: int, kind: str) -> Job:
    at = NOW + timedelta(seconds=number)
    return Job(UUID(int=number), None, None, FEDERATION, 0, kind, None, {}, [], "ready", at)  # type: ignore[arg-type]


async def test_a_fence_waits_behind_no_other_chore(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'lethe.db'}")
    await schema.upgrade(database)
    kinds = ("post", "collect-updates", "fence", "purge")
    waiting = [job(1, "post"), job(2, "purge"), job(3, "fence"), job(4, "post"), job(5, "fence")]
    async with database.write() as connection:
        await connection.execute(t.federations.insert().values(id=FEDERATION, name="f", created_at=NOW))
        await connection.execute(t.jobs.insert(), [to_row(one) for one in waiting])
    order = []
    for _ in waiting:
        async with database.write() as connection:
            leased = await outbox.lease_job(connection, kinds, NOW + timedelta(minutes=1), 600, "token")
        assert leased is not None
        order.append(leased.id.int)
    await database.close()
    assert order == [3, 5, 1, 2, 4]
