"""The order in which jobs leave the outbox, and what it costs to look."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.bus.local import LocalBus
from coordinator.engine.entities import Job
from coordinator.engine.messages import ClaimTasks, CreateRun
from coordinator.runtime.shell import Shell
from coordinator.store import accounts, blobs, due, outbox, read_permissions, retention, schema, slices
from coordinator.store import tables as t
from coordinator.store.database import Database
from coordinator.store.rows import to_row
from coordinator.store.sqlite import driver
from services.wire.v1.resources import FederationCreate
from services.wire.v1.runs import RunSpec

pytestmark = pytest.mark.anyio
FEDERATION = UUID(int=1)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
OF_OPEN_WORK = ("ix_jobs_open", "ix_tasks_claimable", "ix_tasks_due")


def job(number: int, kind: str) -> Job:
    at = NOW + timedelta(seconds=number)
    return Job(UUID(int=number), None, None, FEDERATION, 0, kind, None, {}, [], "ready", at)  # type: ignore[arg-type]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'lethe.db'}")
    await schema.upgrade(database)
    yield database
    await database.close()


async def test_a_fence_waits_behind_no_other_chore(database: Database) -> None:
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
    assert order == [3, 5, 1, 2, 4]


async def test_a_model_that_is_served_is_made_before_those_below_it(database: Database) -> None:
    async with database.write() as connection:
        await accounts.add_federation(connection, FEDERATION, FederationCreate(name="f"), NOW)
        await accounts.add_clients(connection, {name: UUID(int=ord(name)) for name in "abcd"}, FEDERATION, NOW)
    model = {"name": "mlp", "params": {"input_shape": [4], "num_classes": 2}}
    tree = {"name": "tree", "model": model, "topology": {"kind": "tree"}, "stop": {"rounds": 1}}
    shell = Shell(database, LocalBus())
    shell.start()
    await shell.handle(CreateRun(UUID(int=1), FEDERATION, RunSpec.model_validate(tree)))
    await shell.close()
    async with database.write() as connection:
        now = await database.now(connection)
        kinds = dict((await connection.execute(sa.select(t.cohorts.c.id, t.cohorts.c.kind))).all())
        order = []
        while (leased := await outbox.lease_job(connection, ("kernel",), now, 600, "token")) is not None:
            assert leased.cohort_id is not None
            order.append(kinds[leased.cohort_id])
    assert order[0] == "root" and set(order[1:]) == {"inner", "leaf"}


async def test_postgres_waits_for_the_disk_except_in_haste(postgres_url: str) -> None:
    database = Database(postgres_url)
    try:
        for is_durable, setting in ((False, "off"), (True, "on")):
            async with database.write(is_durable=is_durable) as connection:
                assert (await connection.execute(sa.text("SHOW synchronous_commit"))).scalar_one() == setting
    finally:
        await database.close()


async def look_for_work(connection: AsyncConnection) -> None:
    client = UUID(int=2)
    await outbox.has_job(connection, ("kernel",), NOW)
    await outbox.lease_job(connection, ("kernel",), NOW, 1.0, "token")
    await due.due_messages(connection, NOW)
    await due.claimable_clients(connection, [client], NOW)
    await blobs.held_tasks(connection, [client])
    await slices.load(connection, [ClaimTasks(client)])


async def test_looking_for_work_does_not_go_through_what_is_done(database: Database) -> None:
    """Each statement has an index that holds open work only."""
    executed = list[str]()
    async with database.write() as connection:
        own = await connection.run_sync(driver)
        own.set_trace_callback(executed.append)
        await look_for_work(connection)
        own.set_trace_callback(None)
        looks = [sql for sql in executed if " jobs" in sql or " tasks" in sql]
        plans = [[detail for *_, detail in own.execute(f"EXPLAIN QUERY PLAN {sql}")] for sql in looks]
    assert len(plans) >= 6
    for sql, plan in zip(looks, plans, strict=True):
        of_work = [step for step in plan if step.startswith(("SCAN jobs", "SCAN tasks", "SEARCH tasks"))]
        assert of_work, (sql, plan)
        assert any(name in of_work[0] for name in OF_OPEN_WORK), (sql, plan)


async def test_looking_for_work_does_not_go_through_what_is_done_on_postgres(postgres_url: str) -> None:
    """Whatever the values of parameters are: conditions of the indexes stand in the statements."""
    database, executed = Database(postgres_url), list[tuple[str, Any]]()

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any) -> None:
        executed.append((statement, parameters))

    try:
        async with database.write() as connection:
            await connection.execute(sa.text("SET LOCAL enable_seqscan TO off"))  # its tables are empty
            sa.event.listen(connection.sync_connection, "before_cursor_execute", note)
            await look_for_work(connection)
            sa.event.remove(connection.sync_connection, "before_cursor_execute", note)
            looks = [(sql, values) for sql, values in executed if "FROM jobs" in sql or "FROM tasks" in sql]
            for sql, values in looks:
                plan = "\n".join((await connection.exec_driver_sql(f"EXPLAIN {sql}", values)).scalars())
                assert "Seq Scan" not in plan, (sql, plan)
                assert any(name in plan for name in (*OF_OPEN_WORK, "ix_tasks_open", "uq_tasks_one_open")), (sql, plan)
    finally:
        await database.close()
    assert len(looks) >= 6


async def test_looking_for_work_compiles_nothing_anew(database: Database) -> None:
    """SQLite asks its authorizer while it compiles a statement, and never while it runs one."""
    compiled = list[tuple[object, ...]]()

    def note(*what: object) -> int:
        compiled.append(what)
        return sqlite3.SQLITE_OK

    async with database.write() as connection:
        own = await connection.run_sync(driver)
        own.set_authorizer(note)
        for number in range(3):
            compiled.clear()
            client, now = UUID(int=number), NOW + timedelta(seconds=number)
            await outbox.has_job(connection, ("kernel",), now)
            await outbox.lease_job(connection, ("kernel",), now, 1.0, f"token {number}")
            await due.due_messages(connection, now)
            await due.claimable_clients(connection, [client], now)
            await retention.take_collections(connection, client, number)
            await blobs.held_tasks(connection, [client])
            wanted = read_permissions.WantedBytes(FEDERATION, f"sha256:{number:064}", client)
            await read_permissions.for_clients(connection, [wanted])
            await slices.load(connection, [ClaimTasks(client)])
            assert bool(compiled) == (number == 0), compiled
        own.set_authorizer(None)
