"""The law of exact erasure, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.store import tables as t
from tests.integration.test_topologies import NAMES, TOPOLOGIES
from tests.support.federation import federation

pytestmark = pytest.mark.anyio
FIXED = [name for name in TOPOLOGIES if name not in ("flat", "knot clusters")]
"""Topologies whose cohorts do not depend on what the clients hold, nor on the clock."""


async def _published(directory: Path, topology: dict[str, Any], data: dict[str, int]) -> tuple[Any, Any]:
    async with federation(directory, *NAMES) as f:
        f.data |= data
        f.work()
        run_id = await f.create_run(topology=topology)
        assert (await f.wait_for_run(run_id)).status == "completed"
        cohorts = {row.id: row.name for row in await f.rows(t.cohorts)}
        members: dict[str, set[str]] = {}
        for row in await f.rows(t.members):
            members.setdefault(cohorts[row.cohort_id], set()).add(row.name)
        return await f.published(run_id), members


@pytest.mark.parametrize("name", FIXED)
async def test_cohorts_without_a_client_do_not_depend_on_its_data(name: str, tmp_path: Path) -> None:
    one, members = await _published(tmp_path / "one", TOPOLOGIES[name], {})
    other, _ = await _published(tmp_path / "other", TOPOLOGIES[name], {"c2": 4242})
    without = {key for key in one if key[0] != "merged" and "c2" not in members[key[0]]}
    with_it = {key for key in one if key[0] != "merged" and "c2" in members[key[0]] and key[2] > 0}
    assert without
    assert {key: one[key] for key in without} == {key: other[key] for key in without}
    assert all(one[key] != other[key] for key in with_it)


@pytest.mark.parametrize("training", [{"algorithm": "fedavg"}, {"algorithm": "fedavg", "clients_per_round": 3}])
async def test_retraining_after_an_erasure_equals_a_run_that_never_had_the_client(
    training: dict[str, Any], tmp_path: Path
) -> None:
    async with federation(tmp_path / "with", *NAMES) as f:
        f.work()
        run_id = await f.create_run(training=training, stop={"rounds": 6})
        await f.wait_for_run(run_id)
        erasure = await f.wait_for_erasure(await f.erase("c2"))
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        forgotten = (await f.heads(run_id))["all"]
    async with federation(tmp_path / "without", *(name for name in NAMES if name != "c2")) as f:
        f.work()
        run_id = await f.create_run(training=training, stop={"rounds": 6})
        await f.wait_for_run(run_id)
        never_had = (await f.heads(run_id))["all"]
    assert forgotten == never_had


@pytest.mark.parametrize("name", FIXED)
async def test_an_erasure_in_the_middle_leaves_later_models_of_other_cohorts_as_they_would_have_been(
    name: str, tmp_path: Path
) -> None:
    undisturbed, members = await _published(tmp_path / "calm", TOPOLOGIES[name], {})
    async with federation(tmp_path / "erased", *NAMES) as f:
        f.work()
        run_id = await f.create_run(topology=TOPOLOGIES[name])
        some = next(iter(await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)))
        await f.wait(t.cohorts, some.id, lambda row: row.round >= 2 or row.phase in ("finished", "retired"))
        erasure = await f.wait_for_erasure(await f.erase("c2"))
        assert erasure.status == "completed", erasure.reason
        await f.wait_for_run(run_id)
        found = await f.published(run_id)
    without = {key for key in undisturbed if key[0] != "merged" and "c2" not in members[key[0]]}
    assert without
    assert {key: undisturbed[key] for key in without} == {key: found[key] for key in without}
