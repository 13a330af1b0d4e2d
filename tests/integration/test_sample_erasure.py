"""Forgetting samples, bit for bit: what is served afterwards is what it would be if the client never had them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from tests.integration.test_topologies import NAMES, TOPOLOGIES
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
ERASED = [0, 4, 7]


async def forget(f: Federation, **changes: Any) -> UUID:
    return await f.erase("c2", scope="samples", samples={"c2": ERASED}, **changes)


@pytest.mark.parametrize("training", [{"algorithm": "fedavg"}, {"algorithm": "fedavg", "clients_per_round": 3}])
async def test_retraining_without_samples_equals_a_run_whose_client_never_had_them(
    training: dict[str, Any], tmp_path: Path
) -> None:
    async with federation(tmp_path / "with", *NAMES) as f:
        f.work()
        run_id = await f.create_run(training=training, stop={"rounds": 6})
        await f.wait_for_run(run_id)
        before = await f.published(run_id)
        erasure = await f.wait_for_erasure(await forget(f, method="retrain"))
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        after = await f.published(run_id)
    async with federation(tmp_path / "without", *NAMES) as f:
        f.samples["c2"] = [row for row in f.samples["c2"] if row not in ERASED]
        f.work()
        run_id = await f.create_run(training=training, stop={"rounds": 6})
        await f.wait_for_run(run_id)
        never_had = await f.published(run_id)
    kept = {place[2] for place, digest in after.items() if never_had.get(place) == digest}
    again = {number: digest for (_, epoch, number), digest in after.items() if epoch == 1 or number in kept}
    assert again == {number: digest for (_, _, number), digest in never_had.items()}
    assert before["all", 0, 6] != again[6]


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
async def test_old_updates_of_the_client_are_purged_and_new_ones_are_kept(name: str, tmp_path: Path) -> None:
    async with federation(tmp_path / "home", *NAMES) as f:
        f.work()
        run_id = await f.create_run(topology=TOPOLOGIES[name])
        await f.wait_for_run(run_id)
        of_client = t.updates.c.client_id == f.clients["c2"]
        old = {row.id for row in await f.rows(t.updates, of_client)}
        erasure_id = await forget(f, recovery_rounds=2)
        erasure = await f.wait_for_erasure(erasure_id)
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        rows = await f.rows(t.updates, of_client)
        assert old and {row.id for row in rows if not row.stored} == old
        assert any(row.stored for row in rows)
        heads = [row.head_id for row in await f.rows(t.cohorts, t.cohorts.c.head_id.is_not(None))]
        assert not await made_of(f, heads) & old
        (client,) = await f.rows(t.clients, t.clients.c.name == "c2")
        assert client.status == "active" and client.exclusions == client.exclusions_acked


async def made_of(f: Federation, head_ids: list[UUID]) -> set[UUID]:
    """Every update in the ancestry of these models."""
    seen, waiting = set(head_ids), list(head_ids)
    bases = {row.id: row.base_id for row in await f.rows(t.checkpoints)}
    parents = await f.rows(t.parents)
    while waiting:
        one = waiting.pop()
        above = {edge.parent_id for edge in parents if edge.checkpoint_id == one} | {bases[one]}
        waiting += above - seen - {None}
        seen |= above
    rows = await f.rows(t.contributions, t.contributions.c.checkpoint_id.in_([one for one in seen if one]))
    return {row.update_id for row in rows}


async def test_a_database_restored_from_before_the_request_orders_the_samples_again(tmp_path: Path) -> None:
    async with federation(tmp_path / "home", *NAMES) as f:
        f.work()
        run_id = await f.create_run()
        await f.wait_for_run(run_id)
        erasure_id = await forget(f)
        await f.wait_for_erasure(erasure_id)
        await f.wait_for_run(run_id)
        async with f.coordinator.database.write() as connection:  # what a backup from before would lack
            for table in (
                t.certificates,
                t.artefacts,
                t.erasure_log,
                t.lines,
                t.exclusions,
                t.subjects,
                t.evidence_state,
            ):
                await connection.execute(sa.delete(table))
            await connection.execute(t.checkpoints.update().values(superseded_by=None))
            await connection.execute(sa.delete(t.erasures))
            await connection.execute(t.clients.update().values(exclusions=None, exclusions_acked=None))
        await f.coordinator.evidence.look()
        (order,) = await f.rows(t.exclusions)
        assert (order.erasure_id, order.client_name, order.samples) == (erasure_id, "c2", ERASED)
        client_id = f.clients["c2"]
        await f.wait(t.clients, client_id, lambda row: row.exclusions is not None)
        await f.wait(t.clients, client_id, lambda row: row.exclusions == row.exclusions_acked)
