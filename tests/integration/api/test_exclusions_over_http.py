"""What an agent sees when samples of its client must be left out: no work, what to leave out, and work again."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.integration.api.site import Actor, Site, code_of, until
from tests.integration.api.test_erasure_over_http import REQUESTS, completed

pytestmark = pytest.mark.anyio
ACKNOWLEDGEMENT = "/v1/exclusions/acknowledgement"


async def forget(site: Site, key: str, **samples: list[int]) -> str:
    body = {
        "federation_id": site.federation_id,
        "subjects": sorted(samples),
        "scope": "samples",
        "samples": samples,
        "method": "retrain",
    }
    filed = await site.admin.post(REQUESTS, body, expect=202, headers={"Idempotency-Key": key})
    assert filed["fenced_at"] is None
    return str(filed["id"])


async def _is_fenced(site: Site, erasure_id: str) -> bool:
    return (await site.admin.get(f"{REQUESTS}/{erasure_id}"))["fenced_at"] is not None


async def acknowledge(agent: Actor, digest: str, **more: Any) -> Any:
    return await agent.call("PUT", ACKNOWLEDGEMENT, json={"digest": digest, **more})


async def test_an_agent_gets_work_again_once_it_has_acknowledged(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    await site.start_run(stop={"rounds": 2})
    for agent, value in ((a, 1.0), (b, 2.0)):
        await agent.train(value)
    assert (await a.get("/v1/exclusions")) == {"digest": None, "items": []}
    first = await forget(site, "one", a=[7, 3])
    response = await a.call("POST", "/v1/tasks/claim", headers={"Prefer": "wait=5"})
    assert (response.status_code, code_of(response)) == (409, "ledger-behind")
    stated = await a.get("/v1/exclusions")
    assert stated["items"] == [{"erasure_id": first, "samples": [3, 7]}]
    second = await forget(site, "two", a=[4], b=[1])
    assert code_of(await acknowledge(a, stated["digest"])) == "conflict"
    stated = await a.get("/v1/exclusions")
    assert [item["erasure_id"] for item in stated["items"]] == [first, second]
    assert (await acknowledge(a, stated["digest"])).status_code == 200
    assert not await _is_fenced(site, second), "b has not confirmed"
    assert (await acknowledge(b, (await b.get("/v1/exclusions"))["digest"])).status_code == 200
    for erasure_id in (first, second):
        await until(partial(_is_fenced, site, erasure_id))
    (task,) = await a.claim()
    assert task["exclusions"] == stated["digest"]
    await b.train(4.0)
    await a.open_session()
    assert code_of(await a.call("POST", "/v1/tasks/claim")) == "ledger-behind"
    assert (await acknowledge(a, stated["digest"])).status_code == 200
    await a.train(3.0)
    for erasure_id in (first, second):
        done = await completed(site.admin, erasure_id)
        assert all(one["acknowledged_at"] for one in done["exclusions"])


async def test_an_agent_that_waits_for_work_is_told_at_once(small_site: Site) -> None:
    a, b = await small_site.enrol("a", "b")
    await small_site.start_run()
    await a.train(1.0)
    polling = asyncio.create_task(a.call("POST", "/v1/tasks/claim", headers={"Prefer": "wait=20"}))
    polls = small_site.app.state.context.metrics.waiting_polls._value
    await until(lambda: polls.get() == 1)
    await forget(small_site, "one", a=[0])
    async with asyncio.timeout(10):
        assert code_of(await polling) == "ledger-behind"
    assert await b.claim()


@pytest.mark.parametrize(
    "changes",
    [
        {"scope": "samples"},
        {"scope": "samples", "samples": {}},
        {"scope": "samples", "samples": {"b": [1]}},
        {"scope": "samples", "samples": {"a": []}},
        {"scope": "samples", "samples": {"a": [-1]}},
        {"scope": "samples", "samples": {"a": [1, 1]}},
        {"scope": "samples", "samples": {"a": [2**60]}},
        {"scope": "samples", "samples": {"a": ["1"]}},
        {"scope": "samples", "samples": {"a": list(range(100_001))}},
        {"samples": {"a": [1]}},
    ],
)
async def test_samples_that_make_no_sense_are_refused(small_site: Site, changes: Any) -> None:
    await small_site.enrol("a", "b")
    body = {"federation_id": small_site.federation_id, "subjects": ["a"], **changes}
    for path in (REQUESTS, f"{REQUESTS}:preview"):
        response = await small_site.admin.call("POST", path, json=body, headers={"Idempotency-Key": "k"})
        assert (response.status_code, code_of(response)) == (422, "invalid-request")
    assert (await small_site.admin.get(REQUESTS))["items"] == []


async def test_a_preview_counts_the_client_among_those_who_train_again(small_site: Site) -> None:
    agents = await small_site.enrol("a", "b")
    await small_site.start_run(stop={"rounds": 5})
    for value in (1.0, 2.0):
        for agent in agents:
            await agent.train(value)
    await until(lambda: _has_round(small_site, 2))
    wanted = {"federation_id": small_site.federation_id, "subjects": ["b"]}
    samples = {**wanted, "scope": "samples", "samples": {"b": [1]}}
    found = await small_site.admin.post(f"{REQUESTS}:preview", samples, expect=200)
    whole = await small_site.admin.post(f"{REQUESTS}:preview", wanted, expect=200)
    (option,) = [one for one in found["options"] if one["method"] == "retrain"]
    (other,) = [one for one in whole["options"] if one["method"] == "retrain"]
    assert (option["rounds_to_redo"], option["client_updates_to_redo"]) == (2, 4)
    assert (other["rounds_to_redo"], other["client_updates_to_redo"]) == (2, 2)
    assert (await agents[1].get("/v1/exclusions"))["items"] == []


async def _has_round(site: Site, number: int) -> bool:
    (run,) = (await site.admin.get("/v1/runs"))["items"]
    return bool(run["round"] >= number)
