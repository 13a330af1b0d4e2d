"""What grows with the cohorts of a tree, and not with their square: all of them begin with the same model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.views import cohort_row, new_id, run_row
from coordinator.engine.entities import State
from coordinator.engine.needs import Needs
from coordinator.store import accounts, blobs, erasure_costs, loading_erasures, schema
from coordinator.store import tables as t
from coordinator.store.database import Database
from coordinator.store.loading import Loading
from coordinator.store.sqlite import driver
from coordinator.store.warm import cold
from services.wire.v1.resources import FederationCreate

pytestmark = pytest.mark.anyio
NOW = datetime(2030, 1, 1, tzinfo=UTC)
FEDERATION, CLIENT = UUID(int=1), UUID(int=2)
DIGEST = "sha256:" + "0" * 64


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[AsyncConnection]:
    database = Database(f"sqlite:///{tmp_path / 'lethe.db'}")
    await schema.upgrade(database)
    async with database.write() as connection:
        await accounts.add_federation(connection, FEDERATION, FederationCreate(name="f"), NOW)
        await accounts.add_clients(connection, {"client": CLIENT}, FEDERATION, NOW)
        yield connection
    await database.close()


async def make_run(connection: AsyncConnection, num_cohorts: int) -> list[UUID]:
    """The cohorts of a run. In its one round nobody was drawn, so that they still have the model they began with."""
    run_id = new_id(NOW)
    await connection.execute(cold(t.runs.insert()), [run_row(run_id, FEDERATION, "tree", "flat", 1)])
    cohorts = [cohort_row(run_id, f"node-{number}", "line", None, 1) for number in range(num_cohorts)]
    heads = [{**one, "head_id": new_id(NOW), "head_digest": DIGEST} for one in cohorts]
    await connection.execute(cold(t.cohorts.insert()), heads)
    member = {"client_id": CLIENT, "name": "client", "active": True, "joined": False}
    await connection.execute(cold(t.members.insert()), [{"cohort_id": cohorts[0]["id"], **member}])
    of_run = {"run_id": run_id, "epoch": 0, "digest": DIGEST, "scale": 1.0, "stored": True, "forgets": []}
    made = {**of_run, "metrics": {}, "created_at": NOW}
    models = []
    for cohort in heads:
        first = {**made, "id": new_id(NOW), "cohort_id": cohort["id"], "round": 0, "kind": "init", "base_id": None}
        head = {"id": cohort["head_id"], "round": 1, "kind": "aggregate", "base_id": first["id"]}
        models += [first, {**first, **head}]
    await connection.execute(cold(t.checkpoints.insert()), models)
    stored = {"federation_id": FEDERATION, "origin": "job", "digest": DIGEST, "num_bytes": 8, "status": "stored"}
    sealed = {"key_name": "k", "data_key": b"k", "epoch": 0, "created_at": NOW}
    rows = [{"id": new_id(NOW), "cohort_id": cohort["id"], **stored, **sealed} for cohort in cohorts]
    await connection.execute(cold(t.blobs.insert()), rows)
    return [cohort["id"] for cohort in cohorts]


async def steps_of_planning(connection: AsyncConnection, cohort_ids: list[UUID]) -> int:
    """Thousands of steps that the database takes to find what an erasure of the client may concern."""
    num_steps = 0

    def count() -> int:
        nonlocal num_steps
        num_steps += 1
        return 0

    own = await connection.run_sync(driver)
    own.set_progress_handler(count, 1000)
    loading = Loading(connection, Needs(), State())
    await loading_erasures.widen_to_runs_of(loading, {CLIENT})
    traffic = await erasure_costs.traffic(connection, cohort_ids, {CLIENT})
    found = await blobs.stored(connection, FEDERATION, [DIGEST])
    own.set_progress_handler(None, 0)
    assert len(loading.whole) == 1 and {one.bytes_per_update for one in traffic.values()} == {16.0}
    assert len(found[DIGEST]) == blobs.NEWEST
    return num_steps


async def test_planning_an_erasure_grows_with_the_cohorts_of_a_tree(connection: AsyncConnection) -> None:
    few = await make_run(connection, 200)
    begun = await steps_of_planning(connection, few)
    for table in (t.members, t.checkpoints, t.blobs, t.cohorts, t.runs):
        await connection.execute(cold(table.delete()))
    many = await make_run(connection, 1000)
    assert await steps_of_planning(connection, many) < 10 * begun
