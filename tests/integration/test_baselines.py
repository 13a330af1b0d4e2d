"""FATS and Exact-Fun forget by their own rules, and end with the model of a run that never had the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from coordinator.store import tables as t
from tests.integration.test_topologies import NAMES, clients_behind
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
STOP = {"rounds": 5}


async def _never_had(directory: Path, leaver: str, training: dict[str, Any]) -> dict[tuple[str, int, int], str]:
    async with federation(directory, *(name for name in NAMES if name != leaver)) as f:
        f.work()
        run_id = await f.create_run(training=training, stop=STOP)
        assert (await f.wait_for_run(run_id)).status == "completed"
        return await f.published(run_id)


async def _trained(f: Federation, training: dict[str, Any]) -> UUID:
    f.work()
    run_id = await f.create_run(training=training, stop=STOP)
    run = await f.wait_for_run(run_id)
    assert run.status == "completed", run.reason
    return run_id


async def _forget(f: Federation, run_id: UUID, leaver: str) -> str | None:
    """Erases the client; returns the head's digest."""
    erasure = await f.wait_for_erasure(await f.erase(leaver))
    assert erasure.status == "completed", erasure.reason
    await f.wait_for_run(run_id)
    (cohort,) = await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)
    assert f.clients[leaver] not in await clients_behind(f, cohort.head_id)
    return (await f.heads(run_id))["all"]


async def _num_tasks(f: Federation) -> int:
    return len(await f.rows(t.tasks))


async def test_fats_keeps_the_model_when_the_leaver_was_never_drawn_and_retrains_when_it_was(tmp_path: Path) -> None:
    training = {"algorithm": "fats", "clients_per_round": 1}
    async with federation(tmp_path / "with", *NAMES) as f:
        run_id = await _trained(f, training)
        drawn = {row.client_name for row in await f.rows(t.tasks)}
        idle = sorted(set(NAMES) - drawn)
        before, asked = await f.heads(run_id), await _num_tasks(f)
        assert await _forget(f, run_id, idle[0]) == before["all"]
        assert await _num_tasks(f) == asked, "somebody trained again for a client that never did"
        leaver = sorted(drawn)[0]
        forgotten = await _forget(f, run_id, leaver)
        assert forgotten != before["all"]
        again = await _num_tasks(f) - asked
        first = min(row.round for row in await f.rows(t.tasks, t.tasks.c.client_name == leaver))
        assert again == STOP["rounds"] - first + 1
    async with federation(tmp_path / "without", *(n for n in NAMES if n not in (idle[0], leaver))) as f:
        run_id = await _trained(f, training)
        assert (await f.heads(run_id))["all"] == forgotten


@pytest.mark.parametrize(("quantum", "stands"), [(1.0, True), (0.01, False)])
async def test_exact_fun_trains_again_only_from_the_round_that_changes(
    quantum: float, stands: bool, tmp_path: Path
) -> None:
    training = {"algorithm": "exact_fun", "quantum": quantum}
    never = await _never_had(tmp_path / "without", "c2", training)
    async with federation(tmp_path / "with", *NAMES) as f:
        run_id = await _trained(f, training)
        asked = await _num_tasks(f)
        await _forget(f, run_id, "c2")
        found = await f.published(run_id)
        for round in range(1, STOP["rounds"] + 1):
            assert found["all", 1, round] == never["all", 0, round], round
        expected = 0 if stands else (STOP["rounds"] - 1) * (len(NAMES) - 1)
        assert await _num_tasks(f) - asked == expected
        kept = [row for row in await f.rows(t.updates) if row.stored and row.client_name != "c2"]
        assert len(kept) == STOP["rounds"] * (len(NAMES) - 1)
        again = await _forget(f, run_id, "c3")
    async with federation(tmp_path / "neither", *(n for n in NAMES if n not in ("c2", "c3"))) as f:
        run_id = await _trained(f, training)
        assert (await f.heads(run_id))["all"] == again
