"""Each topology trains, forgets a client and goes on; what does not contain the client keeps its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.store import tables as t
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
NAMES = [f"c{i}" for i in range(6)]

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "flat": {"kind": "flat"},
    "random clusters": {"kind": "clusters", "num_clusters": 2, "assignment": "random"},
    "knot clusters": {"kind": "clusters", "num_clusters": 2, "assignment": "knot"},
    "bi-model": {"kind": "bi_model"},
    "tree": {"kind": "tree", "shape": "balanced"},
    "isolated": {"kind": "isolated"},
    "trees in clusters": {
        "kind": "clusters",
        "num_clusters": 2,
        "assignment": "random",
        "inside": {"kind": "tree", "shape": "huffman"},
    },
}


async def clients_behind(f: Federation, checkpoint_id: Any) -> set[Any]:
    """Whose data is in a model: its own contributions and those of everything it was made from."""
    checkpoints = {row.id: row for row in await f.rows(t.checkpoints)}
    parents: dict[Any, list[Any]] = {}
    for edge in await f.rows(t.parents):
        parents.setdefault(edge.checkpoint_id, []).append(edge.parent_id)
    contributions: dict[Any, set[Any]] = {}
    for edge in await f.rows(t.contributions):
        contributions.setdefault(edge.checkpoint_id, set()).add(edge.client_id)
    found, todo = set(), [checkpoint_id]
    while todo:
        current = todo.pop()
        found |= contributions.get(current, set())
        todo += parents.get(current, [])
        if checkpoints[current].base_id is not None:
            todo.append(checkpoints[current].base_id)
    return found


@pytest.mark.parametrize("name", TOPOLOGIES)
async def test_a_run_completes_in_this_topology(name: str, tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run = await f.wait_for_run(await f.create_run(topology=TOPOLOGIES[name]))
        assert run.status == "completed", run.reason
        heads = await f.heads(run.id)
        assert heads
        assert all(heads.values())


@pytest.mark.parametrize("name", TOPOLOGIES)
async def test_no_served_model_has_the_erased_client_in_its_ancestry(name: str, tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(topology=TOPOLOGIES[name])
        await f.wait_for_run(run_id)
        before = await f.published(run_id)
        erasure = await f.wait_for_erasure(await f.erase("c2"))
        assert erasure.status == "completed", erasure.reason
        touched = {row.cohort_name for row in await f.rows(t.lines)}
        for cohort in await f.rows(t.cohorts, t.cohorts.c.run_id == run_id):
            if cohort.head_id is not None and cohort.phase != "retired":
                assert f.clients["c2"] not in await clients_behind(f, cohort.head_id), cohort.name
        after = await f.published(run_id)
        untouched = {key: digest for key, digest in before.items() if key[0] not in touched and key[0] != "merged"}
        assert untouched == {key: after[key] for key in untouched}


async def test_a_run_that_was_started_from_a_model_with_the_client_serves_it_no_more(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        first = await f.create_run()
        await f.wait_for_run(first)
        head = (await f.heads(first))["all"]
        second = await f.create_run(init=head, clients=["c0", "c1"])
        third = await f.create_run(clients=["c0", "c1"])
        await f.wait_for_run(second)
        await f.wait_for_run(third)
        before = await f.heads(third)
        erasure = await f.wait_for_erasure(await f.erase("c2"))
        assert erasure.status == "completed", erasure.reason
        assert await f.heads(second) == {}
        assert await f.heads(third) == before
        assert all(row.superseded_by for row in await f.rows(t.checkpoints, t.checkpoints.c.run_id == second))
