"""What a client's worker said is in no row and no file after its erasure; what others said stays."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.engine.messages import AcknowledgeExclusions, ClaimTasks, FailTask, OpenSession
from coordinator.store import exclusions, inventory, warm
from coordinator.store import tables as t
from coordinator.store.scrubbing.purge import scrub
from coordinator.store.scrubbing.scope import is_mentioned
from coordinator.store.scrubbing.values import SCRUBBED
from tests.support.federation import Federation, federation, reopened

pytestmark = pytest.mark.anyio
NAMES = ("c0", "c1", "c2")
TAIL, REASON, MACHINE = "traceback-of-the-leaver-4711", "gave-up-over-row-4711", "the-leavers-own-gpu-4711"
OTHERS = "what-somebody-else-met-1234"
SEED = 471147114711
ROW = 815081508150


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


async def everything(f: Federation) -> str:
    """All that the rows hold, but for the certificates."""
    words = []
    for table in t.metadata.sorted_tables:
        words += [f"{table.name} {tuple(row)}" for row in await f.rows(table)]
    return "\n".join(words)


async def say(f: Federation, name: str, reason: str, tail: str = "", *, retryable: bool = True) -> UUID:
    """Claim a task and fail at it; returns its id."""
    (granted,) = await f.coordinator.shell.handle(ClaimTasks(f.clients[name]))
    task = granted.task
    said = FailTask(task.id, f.clients[name], task.lease_token or "", retryable, reason, tail)
    await f.coordinator.shell.handle(said)
    return UUID(str(task.id))


async def a_talkative_run(f: Federation) -> UUID:
    """c1 and c2 have each failed once before the run completed."""
    device = {"kind": "cuda", "name": MACHINE, "memory_mb": 1}
    canary = {"target_class": 1, "size": 3, "share": 0.2, "seed": SEED}
    await f.coordinator.shell.handle(OpenSession(f.clients["c1"], f"agent-of-{MACHINE}", [device], canary))
    run_id = await f.create_run(stop={"rounds": 2})
    await f.wait(t.runs, run_id, lambda row: row.status == "running")
    await _until_asked(f, "c1", "c2")
    await say(f, "c1", REASON, TAIL)
    await say(f, "c2", OTHERS, OTHERS)
    f.work()
    await f.wait_for_run(run_id)
    return run_id


async def _until_asked(f: Federation, *names: str) -> None:
    for name in names:
        ready = (t.tasks.c.client_id == f.clients[name]) & (t.tasks.c.status == "ready")
        for _ in range(1000):
            if await f.rows(t.tasks, ready):
                break
            with f.coordinator.bus.waiter(f"client:{f.clients[name]}") as waiter:
                await waiter.wait(0.02)
        else:
            raise AssertionError(f"{name} was not asked")


async def put_figures(f: Federation) -> None:
    """As workers report them; those of these tests report none."""
    async with f.coordinator.database.write() as connection:
        for row in await f.rows(t.updates):
            figures = {"loss": 4711.25 if row.client_name == "c1" else 1234.5}
            await connection.execute(t.updates.update().where(t.updates.c.id == row.id).values(metrics=figures))
        await warm.renew(connection, sa.true())
        aggregates = t.checkpoints.update().where(t.checkpoints.c.kind == "aggregate")
        await connection.execute(aggregates.values(metrics={"clients_loss": 4711.5}))
        initial = t.checkpoints.update().where(t.checkpoints.c.kind == "init")
        await connection.execute(initial.values(metrics={"clients_loss": 1234.5}))


async def test_what_an_erased_clients_worker_said_is_in_no_row(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        await a_talkative_run(f)
        await put_figures(f)
        before = await everything(f)
        assert all(word in before for word in (TAIL, REASON, MACHINE, str(SEED), "4711.25", "4711.5"))
        erasure_id = await f.erase("c1")
        await f.wait_for_erasure(erasure_id)
        after = await everything(f)
        found = [word for word in (TAIL, REASON, MACHINE, str(SEED), "4711.25", "4711.5") if word in after]
        assert found == []
        assert after.count(OTHERS) == before.count(OTHERS) == 3, "what another said, in its task and in the journal"
        listed = await f.rows(t.artefacts, t.artefacts.c.erasure_id == erasure_id)
        kinds = {row.kind for row in listed}
        assert kinds >= {"log-tail", "failure-reason", "device", "figure", "canary"}
        (client,) = await f.rows(t.clients, t.clients.c.name == "c1")
        assert (client.agent_version, client.devices, client.canary) == (None, [], None)
        entries = await f.rows(t.journal, t.journal.c.type == "TaskReleased")
        assert {(e.data["client"], e.data["reason"]) for e in entries} == {("c1", SCRUBBED), ("c2", OTHERS)}


async def test_figures_of_purged_models_go_and_those_of_clean_ones_stay(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        await a_talkative_run(f)
        await put_figures(f)
        await f.wait_for_erasure(await f.erase("c1"))
        models = await f.rows(t.checkpoints)
        assert {row.superseded_by is None for row in models} == {True, False}
        for row in models:
            assert row.epoch > 0 or (row.metrics == {}) == (row.superseded_by is not None), row
        tainted = {row.digest for row in models if row.superseded_by is not None}
        for row in await f.rows(t.updates, t.updates.c.epoch == 0):
            is_emptied = row.client_name == "c1" or row.base_digest in tainted
            assert (row.metrics == {}) == is_emptied, row


async def test_what_an_erased_clients_worker_said_is_in_no_file_of_the_home(tmp_path: Path) -> None:
    words = (TAIL, REASON, MACHINE, str(SEED))

    def found() -> set[str]:
        content = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
        assert len(content) > 5
        return {word for word in words if any(word.encode() in one for one in content)}

    async with federation(tmp_path, *NAMES) as f:
        await a_talkative_run(f)
        assert found() == set(words)
        await f.wait_for_erasure(await f.erase("c1"))
        assert found() == set(), "neither in pages of the database nor in its write-ahead log"


async def test_of_a_client_that_forgets_samples_only_what_it_said_before_the_fence_goes(
    tmp_path: Path, url: str | None
) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        await a_talkative_run(f)
        await f.wait_for_erasure(await f.erase("c1", scope="samples", samples={"c1": [1, 2]}))
        after = await everything(f)
        assert [word for word in (TAIL, REASON) if word in after] == []
        assert MACHINE in after and str(SEED) in after and after.count(OTHERS) == 3
        (exclusion,) = await f.rows(t.exclusions)
        assert exclusion.samples == [1, 2], "it is still to be left out"
        f.offline |= set(NAMES)
        second = await f.create_run(name="second", stop={"rounds": 1})
        await _until_asked(f, "c1")
        await say(f, "c1", REASON, TAIL)
        f.offline.clear()
        await f.wait_for_run(second)
        assert REASON in await everything(f), "it came after the fence"


async def test_an_erased_client_takes_the_numbers_of_its_forgotten_rows_with_it(
    tmp_path: Path, url: str | None
) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        f.work()
        await f.wait_for_run(await f.create_run(stop={"rounds": 1}))
        f.offline.add("c1")
        asked = await f.erase("c1", scope="samples", samples={"c1": [ROW]})
        async with f.coordinator.database.read() as connection:
            stated = await exclusions.of_client(connection, f.clients["c1"])
        said = AcknowledgeExclusions(f.clients["c1"], stated.digest or "", {asked: [ROW]})
        await f.coordinator.shell.handle(said)
        await f.wait_for_erasure(asked)
        assert f"c1 has no samples {ROW}" in await everything(f)
        f.offline.clear()
        await f.wait_for_erasure(await f.erase("c1"))
        assert str(ROW) not in await everything(f)
        requests = await f.rows(t.erasures)
        assert {(row.status, json.dumps(row.samples)) for row in requests} == {("failed", "{}"), ("completed", "{}")}


async def test_a_purge_that_is_done_twice_takes_nothing_more(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        await a_talkative_run(f)
        erasure_id = await f.erase("c1")
        await f.wait_for_erasure(erasure_id)
        async with f.coordinator.database.write() as connection:
            found = await inventory.erasure_record(connection, erasure_id)
            artefacts = await inventory.inventory(connection, found, None)
            assert await scrub(connection, found, artefacts) == []


async def test_what_an_older_release_left_of_an_erased_client_is_scrubbed_at_the_start(
    tmp_path: Path, url: str | None
) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        await a_talkative_run(f)
        f.coordinator.erasure_steps._scrubs = False  # as it was
        await f.wait_for_erasure(await f.erase("c1"))
        assert TAIL in await everything(f)
    async with reopened(tmp_path, url=url) as f:
        after = await everything(f)
        assert [word for word in (TAIL, REASON, MACHINE, str(SEED)) if word in after] == []
        assert after.count(OTHERS) == 3
        assert await f.coordinator.erasure_steps.scrub_old() == 0


def test_a_name_that_is_a_part_of_another_is_not_taken_for_it() -> None:
    mentioned = partial(is_mentioned, frozenset({"c1"}))
    assert mentioned("client c1 has no samples") and mentioned("c1: gone") and mentioned("of c1.")
    assert not any(map(mentioned, ("c11", "c1-b", "a.c1", "xc1", "c1_", "c1.b")))


@pytest.mark.parametrize(("success", "stays"), [(0.054711, True), (0.154711, False)])
async def test_of_an_audit_only_what_the_certificate_publishes_stays(
    success: float, stays: bool, tmp_path: Path, url: str | None
) -> None:
    async with federation(tmp_path, *NAMES, url=url) as f:
        f.work()
        run_id = await f.create_run(stop={"rounds": 2})
        await f.wait_for_run(run_id)
        figures = {"backdoor_success_rate": success, "before_backdoor_success_rate": 0.9, "backdoor_samples": 50.0}
        f.scores["c1"] = figures
        canary = {"target_class": 1, "size": 3, "share": 0.2, "seed": SEED}
        audit = {"thresholds": {"max_backdoor_success": 0.1}, "canary": canary}
        changes: dict[str, Any] = {"params": {"layers": ["w"]}, "audit": audit, "fallback": "retrain"}
        erasure_id = await f.erase("c1", method="not", guarantee="approximate", recovery_rounds=1, **changes)
        assert (await f.wait_for_erasure(erasure_id)).status == "completed"
        rows = {table.name: str(await f.rows(table)) for table in t.metadata.sorted_tables}
        holding = {name for name, words in rows.items() if str(success) in words}
        assert holding == ({"lines"} if stays else set())
        assert not any(str(SEED) in words for words in rows.values())
        (line,) = await f.rows(t.lines)
        assert line.audit["verdict"] == ("passed" if stays else "failed")


async def test_what_clusters_were_formed_from_is_scrubbed_of_the_leaver(tmp_path: Path, url: str | None) -> None:
    names = [f"c{i}" for i in range(6)]
    async with federation(tmp_path, *names, url=url) as f:
        f.work()
        topology = {"kind": "clusters", "num_clusters": 2, "assignment": "knot"}
        await f.wait_for_run(await f.create_run(topology=topology, stop={"rounds": 1}))

        async def measured() -> set[str]:
            states = [row.program_state for row in await f.rows(t.cohorts)]
            params = [row.params for row in await f.rows(t.jobs)]
            told = json.dumps([states, params])
            return {name for name in names if f'"disparity:{name}"' in told or f'"client": "{name}"' in told}

        assert await measured() == set(names)
        await f.wait_for_erasure(await f.erase("c1"))
        assert await measured() == set(names) - {"c1"}
        assert (await f.wait_for_erasure(await f.erase("c2"))).status == "completed"
