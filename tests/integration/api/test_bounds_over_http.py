"""What a client says is bounded at the door, and stops nobody: on SQLite and on Postgres."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.engine.messages import SettleRun
from coordinator.store import tables as t
from coordinator.store import warm
from services.audit.replay import Replayed, replay_step, step_of
from services.tensors.streams import StoredFile
from services.wire.v1.resources import Lineage
from tests.integration.api.site import Actor, Site, code_of, until, update

pytestmark = pytest.mark.anyio
REQUESTS = "/v1/erasure-requests"
AT_CLIENTS = {"at_clients": True}


async def ended(site: Site, run_id: str) -> Any:
    async def has_ended() -> bool:
        return (await site.admin.get(f"/v1/runs/{run_id}"))["status"] != "running"  # type: ignore[no-any-return]

    await until(has_ended, within_s=30)
    return await site.admin.get(f"/v1/runs/{run_id}")


async def judge(agent: Actor, num_samples: int = 10, **figures: float) -> Any:
    (task,) = await agent.claim()
    assert task["kind"] == "evaluate"
    return await agent.submit(task, None, num_samples, metrics=figures)


async def write(site: Site, statement: str, **values: Any) -> None:
    """As an older release wrote it."""
    async with site.coordinator.database.write() as connection:
        await connection.execute(sa.text(statement), values)
        await warm.renew(connection, sa.true())


def as_json(site: Site) -> str:
    return ":value" if site.coordinator.database.is_sqlite else "CAST(:value AS JSONB)"


def not_finite(site: Site) -> str:
    """What an older release could leave in a JSON column of this database."""
    return "Infinity" if site.coordinator.database.is_sqlite else "1" + "0" * 400


@pytest.mark.parametrize("figure", [1e308, -1e308, 1e31, 10**40])
async def test_an_absurd_figure_is_refused_at_the_door(small_site: Site, figure: float) -> None:
    (agent,) = await small_site.enrol("a")
    await small_site.start_run(validation=AT_CLIENTS)
    await agent.train(1.0)
    (task,) = await agent.claim()
    refused = await agent.submit(task, None, metrics={"loss": figure})
    assert (refused.status_code, code_of(refused)) == (422, "invalid-request")
    assert (await agent.submit(task, None, metrics={"loss": 1.0})).status_code == 200


@pytest.mark.parametrize(
    "figures", [{"accuracy": 1.5}, {"mia_auc": -0.1}, {"seconds": -1.0}, {"remaining_samples": -5.0}]
)
async def test_an_impossible_figure_is_refused(small_site: Site, figures: dict[str, float]) -> None:
    (agent,) = await small_site.enrol("a")
    await small_site.start_run(validation=AT_CLIENTS)
    await agent.train(1.0)
    (task,) = await agent.claim()
    assert code_of(await agent.submit(task, None, metrics=figures)) == "invalid-result"


async def test_a_device_without_a_bound_is_refused(small_site: Site) -> None:
    (agent,) = await small_site.enrol("a")
    device = {"kind": "cuda", "name": "x", "memory_mb": 10**30}
    body = {"agent_version": "1", "protocol": 1, "devices": [device]}
    refused = await agent.call("POST", "/v1/sessions", json=body)
    assert (refused.status_code, code_of(refused)) == (422, "invalid-request")


async def test_huge_figures_that_were_stored_before_do_not_stop_the_clockwork(site: Site) -> None:
    """An evaluation that closes by its deadline over figures which no sum of floats can hold."""
    a, b, _ = await site.enrol("a", "b", "silent")
    training = {"algorithm": "fedavg", "quorum": 2, "deadline_s": 0.5}
    run = await site.start_run(training=training, validation=AT_CLIENTS)
    await a.train(1.0)
    await b.train(1.0)
    assert (await judge(a, 10**9, accuracy=0.5, loss=1e30)).status_code == 200
    huge = f'{{"loss": 1{"0" * 308}, "accuracy": 0.5}}'
    judged = "client_name = 'a' AND kind = 'evaluate'"
    await write(site, f"UPDATE updates SET metrics = {as_json(site)} WHERE {judged}", value=huge)
    assert (await judge(b, accuracy=0.5, loss=1.5)).status_code == 200
    assert (await ended(site, run["id"]))["status"] == "completed"
    again = await site.start_run("two", stop={"rounds": 1}, clients=["a"], lease_s=0.5)
    assert await a.claim()
    assert await a.claim(), "the clockwork hands out what was leased and not answered"
    assert (await site.admin.get(f"/v1/runs/{again['id']}"))["status"] == "running"


async def test_rows_that_hold_numbers_which_are_not_finite_are_read(site: Site) -> None:
    (agent,) = await site.enrol("a")
    run = await site.start_run(validation=AT_CLIENTS)
    await agent.train(1.0)
    assert (await judge(agent, accuracy=0.5, loss=1.0)).status_code == 200
    await ended(site, run["id"])
    bad = not_finite(site)
    column = as_json(site)
    figures = f'{{"clients_accuracy": {bad}, "clients_loss": 1{"0" * 308}}}'
    await write(site, f"UPDATE checkpoints SET metrics = {column} WHERE round = 1", value=figures)
    await write(site, f"UPDATE updates SET metrics = {column}", value=figures)
    devices = f'[{{"kind": "cpu", "name": "", "memory_mb": 1{"0" * 30}}}]'
    await write(site, f"UPDATE clients SET devices = {column}", value=devices)
    listed = (await site.admin.get("/v1/runs"))["items"]
    assert [(one["id"], one["accuracy"]) for one in listed] == [(run["id"], None)]
    checkpoints = (await site.admin.get(f"/v1/runs/{run['id']}/checkpoints"))["items"]
    assert checkpoints[-1]["metrics"] == {"clients_loss": 1e308}
    await site.admin.get(f"/v1/checkpoints/{checkpoints[-1]['id']}/lineage")
    await events_of(site, run["id"])
    clients = await site.admin.get(f"/v1/federations/{site.federation_id}/clients")
    assert clients["items"][0]["devices"][0]["memory_mb"] == 10**9


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1.1e12])
async def test_an_update_of_absurd_numbers_is_refused_and_the_run_goes_on(small_site: Site, value: float) -> None:
    a, hostile = await small_site.enrol("a", "hostile")
    run = await small_site.start_run(training={"algorithm": "fedavg", "quorum": 1, "deadline_s": 0.5})
    (task,) = await hostile.claim()
    refused = await hostile.submit(task, await hostile.put_blob(update(value)))
    assert (refused.status_code, code_of(refused)) == (422, "not-finite")
    await a.train(1.0)
    assert (await ended(small_site, run["id"]))["status"] == "completed"


async def test_updates_stored_before_that_overflow_together_are_left_out_and_the_run_goes_on(site: Site) -> None:
    a, x, y = await site.enrol("a", "x", "y")
    run = await site.start_run(stop={"rounds": 2})
    for number in (1, 2):
        await a.train(1.0)
        for agent in (x, y):
            (task,) = await agent.claim()
            assert task["round"] == number
            digest = await agent.put_blob(update(3.4e38))
            await write(site, "UPDATE blobs SET finite = :yes WHERE digest = :digest", digest=digest, yes=True)
            assert (await agent.submit(task, digest)).status_code == 200
    assert (await ended(site, run["id"]))["status"] == "completed"
    rounds = (await site.admin.get(f"/v1/runs/{run['id']}/rounds"))["items"]
    assert sum(one["num_left_out"] for one in rounds) == 2
    left_out = [e["data"] for e in await events_of(site, run["id"]) if e["type"] == "UpdatesLeftOut"]
    assert [(e["round"], len(e["updates"])) for e in left_out] == [(2, 2)]


async def test_an_update_above_the_runs_norm_is_left_out_and_counted(site: Site) -> None:
    a, b, hostile = await site.enrol("a", "b", "hostile")
    run = await site.start_run(training={"algorithm": "fedavg", "max_update_norm": 10.0})
    await a.train(1.0)
    await b.train(3.0)
    await hostile.train(1e6)
    assert (await ended(site, run["id"]))["status"] == "completed"
    lineage = await head_lineage(site, run["id"])
    assert [one["client_name"] for one in lineage["contributions"]] == ["a", "b"]
    assert lineage["clients"] == ["a", "b"]
    assert lineage["checkpoint"]["metrics"]["num_left_out"] == 1
    (trained,) = (await site.admin.get(f"/v1/runs/{run['id']}/rounds"))["items"]
    assert (trained["num_received"], trained["num_left_out"]) == (3, 1)


async def test_a_clipped_update_is_replayed_bit_for_bit(site: Site, tmp_path: Path) -> None:
    a, hostile = await site.enrol("a", "hostile")
    training = {"algorithm": "fedavg", "max_update_norm": 7.0, "large_updates": "clip"}
    run = await site.start_run(training=training)
    await a.train(1.0, num_samples=3)
    await hostile.train(1e6, num_samples=7)
    assert (await ended(site, run["id"]))["status"] == "completed"
    lineage = await head_lineage(site, run["id"])
    ordinary, clipped = lineage["contributions"]
    assert (ordinary["factor"], ordinary["weight"], clipped["weight"]) == (None, 3.0, 7.0)
    assert clipped["factor"] == pytest.approx(7.0 / (1e6 * np.sqrt(8)))
    assert lineage["checkpoint"]["metrics"]["num_clipped"] == 1
    step = step_of(Lineage.model_validate_json(json.dumps(lineage)))
    assert step is not None
    for digest in step.inputs:
        got = await site.admin.call("GET", f"/v1/blobs/{digest}", params={"federation_id": site.federation_id})
        (tmp_path / digest).write_bytes(got.content)
    assert isinstance(replay_step(step, lambda digest: StoredFile(tmp_path / digest)), Replayed)


async def test_a_client_cannot_claim_more_samples_than_were_agreed_with_it(site: Site) -> None:
    path = f"/v1/federations/{site.federation_id}/clients"
    issued = await site.admin.post(path, {"name": "a", "max_samples": 100})
    assert issued["client"]["max_samples"] == 100
    agent = site.actor(issued["token"])
    await site.start_run()
    (task,) = await agent.claim()
    digest = await agent.put_blob(update(1.0))
    refused = await agent.submit(task, digest, 101)
    assert (refused.status_code, code_of(refused)) == (422, "out-of-bounds")
    assert (await agent.submit(task, digest, 100)).status_code == 200


async def test_a_client_cannot_claim_more_samples_than_the_run_takes(small_site: Site) -> None:
    (agent,) = await small_site.enrol("a")
    await small_site.start_run(training={"algorithm": "fedavg", "max_samples_per_client": 50})
    (task,) = await agent.claim()
    digest = await agent.put_blob(update(1.0))
    assert code_of(await agent.submit(task, digest, 51)) == "out-of-bounds"
    assert (await agent.submit(task, digest, 50)).status_code == 200


async def test_a_failed_run_is_resumed_after_the_erasure_of_who_broke_it(site: Site) -> None:
    a, b, attacker = await site.enrol("a", "b", "attacker")
    run = await site.start_run(stop={"rounds": 2})
    for agent in (a, b, attacker):
        await agent.train(1.0)
    await a.train(1.0)  # of round 2, which breaks
    await fail(site, run["id"])
    body = {"federation_id": site.federation_id, "subjects": ["attacker"]}
    filed = await site.admin.post(REQUESTS, body, headers={"Idempotency-Key": "e"}, expect=202)

    async def has_completed() -> bool:
        return (await site.admin.get(f"{REQUESTS}/{filed['id']}"))["status"] == "completed"  # type: ignore[no-any-return]

    await until(has_completed, within_s=30)
    resumed = await site.admin.post(f"/v1/runs/{run['id']}/resume", expect=200)
    assert resumed["status"] == "running"
    for _ in range(2):
        await a.train(1.0)
        await b.train(1.0)
    done = await ended(site, run["id"])
    assert (done["status"], done["round"]) == ("completed", 2)
    assert (await head_lineage(site, run["id"]))["clients"] == ["a", "b"]


async def test_a_failed_run_is_resumed_where_it_stood(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    training = {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 2}
    run = await site.start_run(stop={"rounds": 2}, training=training)
    await a.train(1.0)
    await b.train(1.0)
    await a.train(1.0)  # waits in the buffer
    await fail(site, run["id"])
    refused = await site.admin.call("POST", f"/v1/runs/{run['id']}/resume", headers={"If-Match": '"99"'})
    assert code_of(refused) == "precondition-failed"
    await site.admin.post(f"/v1/runs/{run['id']}/resume", expect=200)
    for agent in (a, b):
        assert (await agent.train(1.0))["epoch"] == 1
    done = await ended(site, run["id"])
    assert (done["status"], done["round"]) == ("completed", 2)
    lineage = await head_lineage(site, run["id"])
    assert lineage["base"]["round"] == 1 and len(lineage["contributions"]) == 2


async def test_a_lease_taken_while_the_clock_was_ahead_lasts_no_longer_than_others(site: Site) -> None:
    (agent,) = await site.enrol("a")
    await site.start_run(lease_s=60.0)
    database: Any = site.coordinator.database
    database._clock = lambda: datetime.now(UTC) + timedelta(days=1)
    (ahead,) = await agent.claim()
    database._clock = lambda: datetime.now(UTC)
    (again,) = await agent.claim(wait_s=20)
    assert again["task_id"] == ahead["task_id"] and again["attempt"] == 2


async def fail(site: Site, run_id: str) -> None:
    """As a kernel that cannot do its work fails a run."""

    async def waits_for_clients() -> bool:
        cohorts = (await site.admin.get(f"/v1/runs/{run_id}/cohorts"))["items"]
        return all(one["phase"] == "asking" and one["round"] == 1 for one in cohorts)

    await until(waits_for_clients, within_s=30)
    shell = site.coordinator.shell
    async with site.coordinator.database.read() as connection:
        (cohort,) = (await connection.execute(sa.select(t.cohorts))).all()
    async with site.coordinator.database.write() as connection:
        await connection.execute(t.cohorts.update().values(phase="failed", reason="it broke", awaiting=None))
    await shell.handle(SettleRun(cohort.run_id, cohort.id))
    assert (await site.admin.get(f"/v1/runs/{run_id}"))["status"] == "failed"


async def events_of(site: Site, run_id: str) -> Any:
    accept = {"Accept": "application/json"}
    return (await site.admin.get(f"/v1/runs/{run_id}/events", params={"limit": 200}, headers=accept))["items"]


async def head_lineage(site: Site, run_id: str) -> Any:
    checkpoints = (await site.admin.get(f"/v1/runs/{run_id}/checkpoints"))["items"]
    (head,) = [one for one in checkpoints if one["is_head"]]
    return await site.admin.get(f"/v1/checkpoints/{head['id']}/lineage")
