"""The four requests of a round, sent down the hot routes and down the general one: the answers are the same.

A query, even one that nobody asks for, makes a request take the general way.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from coordinator.api import hot_routes
from tests.integration.api.site import MODEL, Actor, Site, blob, update

pytestmark = pytest.mark.anyio
OWN_HEADERS = ("x-request-id", "date")
OTHER_DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def hot_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that the hot routes answered themselves."""
    taken: list[str] = []
    find = hot_routes._handler

    def noted(method: str, path: str) -> Any:
        if (found := find(method, path)) is None:
            return None
        label, handler = found

        async def handle(request: Any) -> Any:
            answer = await handler(request)
            if answer is not None:
                taken.append(f"{method} {label}")
            return answer

        return label, handle

    monkeypatch.setattr(hot_routes, "_handler", noted)
    return taken


async def both_ways(actor: Actor, method: str, path: str, **options: Any) -> tuple[Any, Any]:
    return (
        _seen(await actor.call(method, path, **options)),
        _seen(await actor.call(method, path, params={"general": "1"}, **options)),
    )


def _seen(response: httpx.Response) -> tuple[int, dict[str, str], Any]:
    headers = {name: value for name, value in response.headers.items() if name not in OWN_HEADERS}
    if headers.get("content-type", "").endswith("json"):
        body = response.json()
        if isinstance(body, dict):
            body.pop("request_id", None)
            body.pop("instance", None)
        headers.pop("content-length", None)
        return response.status_code, headers, body
    return response.status_code, headers, response.content


async def test_models_are_served_alike(small_site: Site, hot_paths: list[str]) -> None:
    (agent,) = await small_site.enrol("a")
    await small_site.start_run()
    await agent.claim()
    digest, _ = blob(MODEL)
    path = f"/v1/blobs/{digest}"
    for headers in ({}, {"Range": "bytes=3-9"}, {"Range": "bytes=99999999-"}, {"If-None-Match": f'"{digest}"'}):
        hot_way, general_way = await both_ways(agent, "GET", path, headers=headers)
        assert hot_way == general_way
    assert hot_paths.count("GET /v1/blobs/{digest}") >= 3
    for strange in (f"/v1/blobs/{OTHER_DIGEST}", "/v1/blobs/none"):
        hot_way, general_way = await both_ways(agent, "GET", strange)
        assert hot_way == general_way
        assert hot_way[0] in (404, 422)


async def test_uploads_are_taken_and_refused_alike(small_site: Site, hot_paths: list[str]) -> None:
    a, b = await small_site.enrol("a", "b")
    await small_site.start_run()
    await a.claim()
    await b.claim()
    digest, data = blob(update(1.0))
    for content, name in ((data[:-1], digest), (b"not safetensors", digest), (data, OTHER_DIGEST)):
        hot_way, general_way = await both_ways(a, "PUT", f"/v1/blobs/{name}", content=content)
        assert hot_way == general_way
        assert 400 <= hot_way[0] < 500
    first = _seen(await a.call("PUT", f"/v1/blobs/{digest}", content=data))
    other_digest, other_data = blob(update(2.0))
    second = _seen(await b.call("PUT", f"/v1/blobs/{other_digest}", content=other_data, params={"general": "1"}))
    assert (first[0], first[1].keys()) == (second[0], second[1].keys()) == (201, first[1].keys())
    assert "PUT /v1/blobs/{digest}" in hot_paths


async def test_results_are_taken_and_refused_alike(small_site: Site, hot_paths: list[str]) -> None:
    (agent,) = await small_site.enrol("a")
    await small_site.start_run()
    (task,) = await agent.claim()
    digest = await agent.put_blob(update(1.0))
    path = f"/v1/tasks/{task['task_id']}/result"
    good = {"lease_token": task["lease_token"], "update": digest, "num_samples": 10}
    bad: list[dict[str, Any]] = [
        {"json": {**good, "num_samples": -1}},
        {"json": {**good, "unheard_of": 1}},
        {"json": {**good, "update": OTHER_DIGEST}},
        {"content": b"{", "headers": {"Content-Type": "application/json"}},
        {"content": b"x" * 20_000, "headers": {"Content-Type": "application/json"}},
        {"content": b"{}", "headers": {"Content-Type": "text/plain"}},
    ]
    for options in bad:
        hot_way, general_way = await both_ways(agent, "PUT", path, **options)
        assert hot_way == general_way
        assert 400 <= hot_way[0] < 500, options
    # The second is a repetition of the first, and gets the same answer.
    hot_way, general_way = await both_ways(agent, "PUT", path, json=good)
    assert hot_way == general_way
    assert hot_way[0] == 200
    assert "PUT /v1/tasks/{task_id}/result" in hot_paths


async def test_claims_are_answered_alike(small_site: Site, hot_paths: list[str]) -> None:
    (agent,) = await small_site.enrol("a")
    for headers in ({}, {"Prefer": "wait=0"}, {"Prefer": "wait=nonsense"}, {"Prefer": "w" * 300}):
        hot_way, general_way = await both_ways(agent, "POST", "/v1/tasks/claim", headers=headers)
        assert hot_way == general_way
    await small_site.start_run()
    # Claimed, and claimed again by the same client: its own lease.
    (claimed,) = await agent.claim()
    assert claimed["lease_token"]
    hot_way, general_way = await both_ways(agent, "POST", "/v1/tasks/claim", headers={"Prefer": "wait=0"})
    assert hot_way == general_way
    assert "POST /v1/tasks/claim" in hot_paths


async def test_strangers_are_refused_alike(small_site: Site) -> None:
    stranger = small_site.actor("nobody")
    for method, path in (("POST", "/v1/tasks/claim"), ("GET", f"/v1/blobs/{OTHER_DIGEST}")):
        hot_way, general_way = await both_ways(stranger, method, path)
        assert hot_way == general_way
        assert hot_way[0] == 401
