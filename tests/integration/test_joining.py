"""Each topology trains, takes in a client, forgets one of the two kinds, and goes on; the others keep their bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from coordinator.engine.messages import JoinRun
from coordinator.store import tables as t
from services.core.errors import Rejected
from tests.integration.test_topologies import NAMES, TOPOLOGIES, clients_behind
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
SPECTRAL = {"kind": "clusters", "num_clusters": 2, "assignment": "spectral"}
ALL = {**TOPOLOGIES, "spectral clusters": SPECTRAL}
STOP = {"rounds": 5}


async def _join(f: Federation, run_id: UUID, name: str) -> None:
    """Let it take part once the second round is through, and wait until it has its place."""

    async def rounds() -> list[int]:
        return [row.round for row in await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)]

    while max(await rounds()) < 2:  # noqa: ASYNC110 - rows tell of no event
        await asyncio.sleep(0.01)
    await f.enrol(name)
    f.work(name)
    await f.coordinator.shell.handle(JoinRun(run_id, f.id, (name,)))


async def _members(f: Federation, run_id: UUID) -> dict[str, set[str]]:
    cohorts = {row.id: row.name for row in await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)}
    found: dict[str, set[str]] = {}
    for row in await f.rows(t.members, t.members.c.cohort_id.in_(cohorts)):
        found.setdefault(cohorts[row.cohort_id], set()).add(row.name)
    return found


@pytest.mark.parametrize("name", ALL)
async def test_a_client_joins_and_an_old_one_and_the_new_one_are_forgotten(name: str, tmp_path: Path) -> None:
    is_measured = ALL[name].get("assignment", "random") != "random"
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run_id = await f.create_run(topology=ALL[name], stop={"rounds": 15 if is_measured else 5})
        await _join(f, run_id, "new")
        run = await f.wait_for_run(run_id)
        assert run.status == "completed", run.reason
        assert f.clients["new"] in {row.client_id for row in await f.rows(t.contributions)}
        for leaver in ("c2", "new"):
            before, members = await f.published(run_id), await _members(f, run_id)
            gone = {row.name for row in await f.rows(t.cohorts) if row.phase == "retired"}
            erasure_id = await f.erase(leaver)
            erasure = await f.wait_for_erasure(erasure_id)
            assert erasure.status == "completed", erasure.reason
            touched = {row.cohort_name for row in await f.rows(t.lines, t.lines.c.erasure_id == erasure_id)}
            assert touched == {c for c, names in members.items() if leaver in names} - gone
            for cohort in await f.rows(t.cohorts, t.cohorts.c.run_id == run_id):
                if cohort.head_id is not None:
                    assert f.clients[leaver] not in await clients_behind(f, cohort.head_id), cohort.name
            after = await f.published(run_id)
            untouched = {key: before[key] for key in before if key[0] not in touched | {"merged"}}
            assert untouched == {key: after[key] for key in untouched}


FIXED = [name for name in TOPOLOGIES if name not in ("flat", "knot clusters")]


@pytest.mark.parametrize("name", FIXED)
async def test_cohorts_without_the_newcomer_serve_what_they_would_have_without_it(name: str, tmp_path: Path) -> None:
    training = {"algorithm": "fedavg", "clients_per_round": 3}
    async with federation(tmp_path / "alone", *NAMES) as f:
        f.work()
        run_id = await f.create_run(topology=TOPOLOGIES[name], training=training, stop=STOP)
        assert (await f.wait_for_run(run_id)).status == "completed"
        alone = await f.published(run_id)
    async with federation(tmp_path / "joined", *NAMES) as f:
        f.work()
        run_id = await f.create_run(topology=TOPOLOGIES[name], training=training, stop=STOP)
        await _join(f, run_id, "new")
        assert (await f.wait_for_run(run_id)).status == "completed"
        joined, members = await f.published(run_id), await _members(f, run_id)
    without = {key for key in alone if key[0] != "merged" and "new" not in members[key[0]]}
    assert without
    assert {key: alone[key] for key in without} == {key: joined[key] for key in without}


async def test_forgetting_the_newcomer_of_a_flat_run_gives_the_run_that_never_had_it(tmp_path: Path) -> None:
    training = {"algorithm": "fedavg", "clients_per_round": 3}
    heads = []
    for joins in (True, False):
        async with federation(tmp_path / str(joins), *NAMES) as f:
            f.work()
            run_id = await f.create_run(training=training, stop={"rounds": 8})
            if joins:
                await _join(f, run_id, "new")
            await f.wait_for_run(run_id)
            if joins:
                assert (await f.wait_for_erasure(await f.erase("new"))).status == "completed"
                await f.wait_for_run(run_id)
            heads.append((await f.heads(run_id))["all"])
    assert heads[0] == heads[1]


async def test_an_erased_client_cannot_join_again(tmp_path: Path) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        first = await f.create_run()
        await f.wait_for_run(first)
        await f.wait_for_erasure(await f.erase("c2"))
        second = await f.create_run(clients=["c0", "c1"], stop={"rounds": 200})
        with pytest.raises(Rejected) as refused:
            await f.coordinator.shell.handle(JoinRun(second, f.id, ("c2",)))
        assert refused.value.code == "already-erased"
