"""What comes at the same time is done together: messages share a transaction, rounds a trip of retention."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.engine.entities import Job
from coordinator.engine.messages import ClaimTasks
from coordinator.runtime import coordinator
from coordinator.store import outbox
from coordinator.store import tables as t
from coordinator.store.database import Database
from tests.integration.test_inventory import stored
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
NAMES = ("c0", "c1", "c2")


async def test_messages_that_come_within_a_few_turns_of_the_loop_share_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_written, write = 0, Database.write

    @asynccontextmanager
    async def counted(self: Database, *, is_durable: bool = True) -> Any:
        nonlocal num_written
        num_written += 1
        async with write(self, is_durable=is_durable) as connection:
            yield connection

    async def late(f: Federation, name: str, turns: int) -> Any:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await f.coordinator.shell.handle(ClaimTasks(f.clients[name]))

    async with federation(tmp_path, *NAMES) as f:
        await f.create_run(stop={"rounds": 1})
        monkeypatch.setattr(Database, "write", counted)
        granted = await asyncio.gather(*(late(f, name, turns) for turns, name in enumerate(NAMES)))
        assert [len(one) for one in granted] == [1, 1, 1]
        assert num_written == 1


async def test_one_chore_of_retention_does_all_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "RETENTION_S", 3600.0)
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 4}, retention={"updates": "none"})
        assert (await f.wait_for_run(run_id)).status == "completed"
        collections = t.jobs.c.kind == "collect-updates"
        assert {row.status for row in await f.rows(t.jobs, collections)} == {"ready"}
        updates = {row.digest for row in await f.rows(t.updates)}
        assert len(updates) == 4 * len(NAMES) and updates <= await stored(f)

        assert (await collect_oldest(f)).params["up_to_round"] == 1
        assert {row.status for row in await f.rows(t.jobs, collections)} == {"done"}
        assert not any(row.stored for row in await f.rows(t.updates))
        assert not updates & await stored(f)


async def test_what_came_after_an_erasure_is_not_judged_by_the_rounds_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "RETENTION_S", 3600.0)
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 4}, retention={"updates": 1})
        assert (await f.wait_for_run(run_id)).status == "completed"
        assert (await f.wait_for_erasure(await f.erase("c0", recovery_rounds=2))).status == "completed"
        rounds = {row.id: row.number for row in await f.rows(t.rounds, t.rounds.c.epoch == 1)}
        assert set(rounds.values()) >= {1, 2}
        while (job := await collect_oldest(f)).epoch == 0:
            assert all(row.stored for row in await f.rows(t.updates, t.updates.c.consumed_by.in_(rounds)))
        kept = {
            rounds[row.consumed_by] for row in await f.rows(t.updates, t.updates.c.stored) if row.consumed_by in rounds
        }
        assert kept == {max(rounds.values())}, job


async def collect_oldest(f: Federation) -> Job:
    database = f.coordinator.database
    async with database.write() as connection:
        now = await database.now(connection)
        job = await outbox.lease_job(connection, ("collect-updates",), now, 60.0, "token")
    assert job is not None
    await f.coordinator.kept_updates.collect(job, "token")
    return job
