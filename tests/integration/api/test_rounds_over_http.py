"""Whole rounds, driven by hand through the API; kernels run in the coordinator's threads."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from services.core.seeds import derive
from tests.integration.api.site import MODEL, Actor, Site, blob, code_of, until, update

pytestmark = pytest.mark.anyio


async def finished(site: Site, run_id: str) -> Any:
    async def has_ended() -> bool:
        return (await site.admin.get(f"/v1/runs/{run_id}"))["status"] != "running"  # type: ignore[no-any-return]

    await until(has_ended, within_s=30)
    return await site.admin.get(f"/v1/runs/{run_id}")


async def head_model(site: Site, run_id: str) -> dict[str, Any]:
    checkpoints = (await site.admin.get(f"/v1/runs/{run_id}/checkpoints"))["items"]
    (head,) = [checkpoint for checkpoint in checkpoints if checkpoint["is_head"]]
    model = await site.admin.call("GET", f"/v1/checkpoints/{head['id']}/model")
    assert model.headers["etag"] == f'"{head["digest"]}"'
    return load(model.content)


async def test_a_fedavg_run_goes_from_creation_to_a_weighted_mean(site: Site) -> None:
    a, b = await site.enrol("hospital-a", "hospital-b")
    run = await site.start_run(training={"algorithm": "fedavg"})
    await a.open_session()
    task = await a.train(1.0, num_samples=10)
    assert task["seed"] == derive(0, "local", "all", 1, "hospital-a")
    assert (task["round"], task["epoch"], task["heartbeat_every_s"]) == (1, 0, 10.0)
    await b.train(4.0, num_samples=20)
    ended = await finished(site, run["id"])
    assert (ended["status"], ended["round"], ended["reason"]) == ("completed", 1, "all 1 rounds done")
    model = await head_model(site, run["id"])
    np.testing.assert_allclose(model["layer.weight"], MODEL["layer.weight"] + 3.0)
    assert model["steps"] == 7


async def test_a_fedbuff_run_steps_when_its_buffer_is_full(site: Site) -> None:
    agents = await site.enrol("a", "b", "c")
    training = {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 3}
    run = await site.start_run(training=training, stop={"rounds": 2})
    working = [asyncio.create_task(_train_until_told(agent, 1.0)) for agent in agents]
    ended = await finished(site, run["id"])
    for agent in working:
        agent.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert (ended["status"], ended["round"]) == ("completed", 2)
    np.testing.assert_allclose((await head_model(site, run["id"]))["layer.bias"], 2.0)


async def _train_until_told(agent: Actor, value: float) -> None:
    while True:
        for task in await agent.claim():
            try:
                digest = await agent.put_blob(update(value), task=task)
            except AssertionError:  # the run has ended meanwhile
                return
            response = await agent.submit(task, digest)
            assert response.status_code == 200 or code_of(response) in ("round-closed", "lease-lost")


async def test_the_lineage_names_every_client_whose_data_is_in_a_model(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    run = await site.start_run(stop={"rounds": 2})
    for value in (1.0, 2.0):
        await a.train(value, num_samples=5)
        await b.train(value, num_samples=15)
    await finished(site, run["id"])
    init, first, second = (await site.admin.get(f"/v1/runs/{run['id']}/checkpoints"))["items"]
    lineage = await site.admin.get(f"/v1/checkpoints/{second['id']}/lineage")
    assert lineage["ancestors"] == [first["id"], init["id"]]
    assert lineage["base"]["id"] == first["id"]
    assert lineage["clients"] == ["a", "b"]
    assert [(c["client_name"], c["num_samples"], c["digest"]) for c in lineage["contributions"]] == [
        ("a", 5, blob(update(2.0))[0]),
        ("b", 15, blob(update(2.0))[0]),
    ]
    assert lineage == await site.admin.get(f"/v1/checkpoints/{second['id']}/lineage")
    of_init = await site.admin.get(f"/v1/checkpoints/{init['id']}/lineage")
    assert (of_init["clients"], of_init["ancestors"], of_init["base"]) == ([], [], None)
    assert init["bytes"] == len(blob(MODEL)[1])


async def test_evaluation_at_the_clients_gives_the_run_its_accuracy(site: Site) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run(validation={"at_clients": True})
    await a.train(1.0)
    (judging,) = await a.claim()
    assert judging["kind"] == "evaluate"
    assert (await a.submit(judging, None, metrics={"accuracy": 0.75})).status_code == 200
    assert (await finished(site, run["id"]))["accuracy"] == 0.75
    (listed,) = (await site.admin.get("/v1/runs"))["items"]
    assert listed["accuracy"] == 0.75


async def test_the_views_of_a_run_agree_with_what_happened(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    run = await site.start_run()
    await a.train(1.0)
    (task,) = await b.claim()
    failure = {"lease_token": task["lease_token"], "retryable": False, "reason": "no data\0", "log_tail": "Traceback"}
    assert (await b.post(f"/v1/tasks/{task['task_id']}/failure", failure, expect=200)) == {"status": "given-up"}
    (cohort,) = (await site.admin.get(f"/v1/runs/{run['id']}/cohorts"))["items"]
    assert (cohort["name"], cohort["num_members"]) == ("all", 2)
    assert await site.admin.get(f"/v1/cohorts/{cohort['id']}") == cohort
    members = (await site.admin.get(f"/v1/cohorts/{cohort['id']}/members"))["items"]
    assert [member["name"] for member in members] == ["a", "b"]
    (round,) = (await site.admin.get(f"/v1/runs/{run['id']}/rounds"))["items"]
    assert (round["num_selected"], round["num_received"], round["num_failed"]) == (2, 1, 1)
    (failed,) = (await site.admin.get(f"/v1/runs/{run['id']}/tasks?status=failed"))["items"]
    assert (failed["client_name"], failed["failure"], failed["log_tail"]) == (
        "b",
        "no data\N{REPLACEMENT CHARACTER}",
        "Traceback",
    )
