"""What one client, federation, address or specification may ask for, and that the others go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.api.limits import Rates
from tests.integration.api.site import Actor, Site, code_of, connected, opened

pytestmark = pytest.mark.anyio
MANY = 30


async def statuses(actor: Actor, count: int = MANY, path: str = "/v1/exclusions") -> list[int]:
    return [(await actor.call("GET", path)).status_code for _ in range(count)]


async def test_a_client_that_asks_too_often_is_told_to_wait_and_others_are_not(tmp_path: Path) -> None:
    async with opened(tmp_path, None, max_requests_per_client=1) as site:
        a, b = await site.enrol("a", "b")
        assert set(await statuses(a)) == {200, 429}
        refused = await a.call("GET", "/v1/exclusions")
        assert (code_of(refused), refused.json()["retryable"]) == ("too-many-requests", True)
        assert int(refused.headers["retry-after"]) >= 1
        assert await statuses(b, 5) == [200] * 5
        assert (await site.http.get("/readyz")).status_code == 200


async def test_a_federation_that_is_flooded_by_one_client_still_serves_the_frugal_ones(tmp_path: Path) -> None:
    async with opened(tmp_path, None, max_requests_per_client=5, max_requests_per_federation=1) as site:
        a, b = await site.enrol("a", "b")
        (c,) = await site.enrol("c", federation_id=await site.federation("neurology"))
        answers = await statuses(a, 40)
        assert answers.count(200) < 40  # and its own limit would have let them pass
        assert await statuses(b, 5) == [200] * 5
        assert await statuses(c, 5) == [200] * 5


async def test_an_address_that_guesses_credentials_has_to_wait(tmp_path: Path) -> None:
    async with opened(tmp_path, None, max_failed_logins_per_peer=1) as site:
        (a,) = await site.enrol("a")
        assert await statuses(a, 1) == [200]
        assert set(await statuses(site.actor("wrong"))) == {401, 429}
        nameless = await site.http.get("/v1/exclusions")
        assert (nameless.status_code, code_of(nameless)) == (429, "too-many-requests")
        assert await statuses(a, 5) == [200] * 5  # it was seen to be right
        elsewhere = httpx.ASGITransport(site.app, client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=elsewhere, base_url="http://coordinator") as http:
            assert await statuses(Actor(http, "wrong"), 1) == [401]


def test_a_rate_allows_a_burst_and_then_its_pace() -> None:
    now = 1000.0
    rates = Rates(2.0, clock=lambda: now)
    assert [rates.take("a") for _ in range(21)] == [True] * 20 + [False]
    assert rates.take("b")
    assert rates.wait_s("a") == 3  # then there are enough for a few in a row
    now += 1.0
    assert [rates.take("a") for _ in range(3)] == [True, True, False]
    now += 1e6
    assert [rates.take("a") for _ in range(21)] == [True] * 20 + [False]


def test_rates_forget_who_was_silent() -> None:
    now = 1000.0
    rates = Rates(1.0, clock=lambda: now)
    for number in range(50_000):
        now += 0.001
        rates.take(str(number))
    assert len(rates._left) <= 20_000


# --- specifications ---------------------------------------------------------------------------------------------------

HUGE_MODELS: dict[str, dict[str, Any]] = {
    "wide": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10, "hidden": [10**9]}},
    "wide layers": {"name": "mlp", "params": {"input_shape": [64], "num_classes": 10, "hidden": [65_536] * 32}},
    "large input": {"name": "cnn", "params": {"input_shape": [3, 65_536, 65_536], "num_classes": 10}},
    "many classes": {"name": "resnet", "params": {"input_shape": [3, 32, 32], "num_classes": 10**12}},
    "deep": {"name": "gpt2", "params": {"input_shape": [512], "num_classes": 50_000, "width": 4096, "num_layers": 256}},
    "talkative": {"name": "custom", "params": {"notes": "x" * 20_000}},
}


def run_of(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "tiny", "model": model, **more}


async def refusal(site: Site, spec: dict[str, Any]) -> httpx.Response:
    body = {"federation_id": site.federation_id, "spec": spec}
    return await site.admin.call("POST", "/v1/runs", json=body, headers={"Idempotency-Key": "one"})


@pytest.mark.parametrize("kind", HUGE_MODELS)
async def test_a_model_of_absurd_size_is_refused_before_anything_is_made(small_site: Site, kind: str) -> None:
    await small_site.enrol("a")
    refused = await refusal(small_site, run_of(HUGE_MODELS[kind], init="sha256:" + "0" * 64))
    assert (refused.status_code, code_of(refused)) == (422, "invalid-run")
    assert (await small_site.admin.get("/v1/runs"))["items"] == []


async def test_an_installation_sets_how_large_a_model_may_be(tmp_path: Path) -> None:
    async with opened(tmp_path, None, max_model_parameters=1000) as site:
        await site.enrol("a")
        params = {"input_shape": [8, 8], "num_classes": 10, "hidden": [80]}
        refused = await refusal(site, run_of({"name": "mlp", "params": params}))
        assert code_of(refused) == "invalid-run"
        assert "LETHE_MAX_MODEL_PARAMETERS" in refused.json()["detail"]
        small = await refusal(site, run_of({"name": "mlp", "params": {**params, "hidden": []}}))
        assert small.status_code == 201


@pytest.mark.parametrize("depth", [40, 500, 2000, 200_000])
@pytest.mark.parametrize("leaf", ["1", '"\\u0000"'], ids=["number", "nul"])
async def test_json_that_is_nested_too_deep_is_refused_everywhere(small_site: Site, depth: int, leaf: str) -> None:
    (a,) = await small_site.enrol("a")
    deep = '{"a":' * depth + leaf + "}" * depth
    federation = f'"federation_id":"{small_site.federation_id}"'
    model = '{"name":"custom","params":' + deep + "}"
    spec = '{"name":"x","init":"' + await small_site.upload_model() + '","model":' + model + "}"
    bodies = {
        "/v1/runs": (small_site.admin, "{" + federation + ',"spec":' + spec + "}"),
        "/v1/erasure-requests": (small_site.admin, "{" + federation + ',"subjects":["a"],"params":' + deep + "}"),
        "/v1/federations": (small_site.admin, deep),
        "/v1/sessions": (a, "[" * depth + leaf + "]" * depth),
    }
    for path, (actor, body) in bodies.items():
        headers = {"Content-Type": "application/json", "Idempotency-Key": "one"}
        refused = await actor.call("POST", path, content=body, headers=headers)
        assert (refused.status_code, code_of(refused)) in ((422, "invalid-request"), (413, "too-large")), path


async def test_many_requests_at_once_are_no_reason_to_refuse(small_site: Site) -> None:
    """The defaults let a herd of agents in that comes back together."""
    agents = await small_site.enrol(*(f"client-{number}" for number in range(20)))
    async with connected(small_site.app) as http:
        calls = [Actor(http, agent.token).call("GET", "/v1/exclusions") for agent in agents for _ in range(20)]
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
