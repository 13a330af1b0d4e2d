"""Idempotency keys, ETags, pages."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.integration.api.site import Site, code_of

pytestmark = pytest.mark.anyio


async def body_for(site: Site, name: str = "tiny") -> dict[str, Any]:
    spec = {"name": name, "model": {"name": "custom"}, "init": await site.upload_model()}
    return {"federation_id": site.federation_id, "spec": spec}


async def test_a_run_needs_an_idempotency_key(small_site: Site) -> None:
    await small_site.enrol("a")
    response = await small_site.admin.call("POST", "/v1/runs", json=await body_for(small_site))
    assert (response.status_code, code_of(response)) == (400, "idempotency-key-missing")
    headers = {"Idempotency-Key": "x" * 256}
    response = await small_site.admin.call("POST", "/v1/runs", json=await body_for(small_site), headers=headers)
    assert (response.status_code, code_of(response)) == (422, "invalid-request")


async def test_the_same_key_and_body_find_the_same_run(site: Site) -> None:
    await site.enrol("a")
    body, headers = await body_for(site), {"Idempotency-Key": "once"}
    answers = await asyncio.gather(*(site.admin.call("POST", "/v1/runs", json=body, headers=headers) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {201}
    (run_id,) = {answer.json()["id"] for answer in answers}
    assert answers[0].headers["location"] == f"/v1/runs/{run_id}"
    assert [run["id"] for run in (await site.admin.get("/v1/runs"))["items"]] == [run_id]


async def test_the_same_key_with_another_body_is_refused(site: Site) -> None:
    await site.enrol("a")
    headers = {"Idempotency-Key": "once"}
    await site.admin.post("/v1/runs", await body_for(site), headers=headers)
    response = await site.admin.call("POST", "/v1/runs", json=await body_for(site, "other"), headers=headers)
    assert (response.status_code, code_of(response)) == (422, "idempotency-key-reused")


async def test_keys_of_two_callers_do_not_collide(site: Site) -> None:
    await site.enrol("a")
    operator = await site.staff("operator")
    mine, theirs = await site.start_run("k"), await site.start_run("k", by=operator)
    assert mine["id"] != theirs["id"]


async def test_a_change_may_depend_on_the_version_that_was_read(site: Site) -> None:
    await site.enrol("a")
    path = f"/v1/runs/{(await site.start_run())['id']}"
    etag = (await site.admin.call("GET", path)).headers["etag"]
    paused = await site.admin.call("POST", f"{path}/pause", headers={"If-Match": etag})
    assert (paused.json()["status"], paused.json()["reason"]) == ("paused", "paused by an operator")
    assert paused.headers["etag"] == f'"{paused.json()["version"]}"' != etag
    for stale in (etag, 'W/"1"', "nonsense"):
        response = await site.admin.call("POST", f"{path}/resume", headers={"If-Match": stale})
        assert (response.status_code, code_of(response)) == (412, "precondition-failed")
    for fresh in (paused.headers["etag"], "*"):
        resumed = await site.admin.call("POST", f"{path}/resume", headers={"If-Match": fresh})
        assert resumed.json()["status"] == "running"


async def test_a_paused_run_hands_out_no_work_and_an_ended_one_stays_ended(site: Site) -> None:
    (a,) = await site.enrol("a")
    path = f"/v1/runs/{(await site.start_run())['id']}"
    await site.admin.post(f"{path}/pause", expect=200)
    assert await a.claim(0) == []
    await site.admin.post(f"{path}/resume", expect=200)
    assert len(await a.claim(0)) == 1
    assert (await site.admin.post(f"{path}/cancel", expect=200))["status"] == "cancelled"
    for action in ("pause", "resume"):
        assert code_of(await site.admin.call("POST", f"{path}/{action}")) == "conflict"
    assert (await site.admin.get("/v1/runs?status=running"))["items"] == []
    assert len((await site.admin.get("/v1/runs?status=cancelled"))["items"]) == 1


async def test_lists_come_in_pages_that_lead_to_each_other(site: Site) -> None:
    names = [f"client-{i}" for i in range(5)]
    await site.enrol(*names)
    url: str | None = f"/v1/federations/{site.federation_id}/clients?limit=2"
    pages = []
    while url is not None:
        response = await site.admin.call("GET", url)
        pages.append([client["name"] for client in response.json()["items"]])
        link = re.fullmatch(r'<(.+)>; rel="next"', response.headers.get("link", ""))
        assert (link is None) == (response.json()["next_cursor"] is None)
        url = link[1] if link else None
    assert pages == [names[0:2], names[2:4], names[4:]]


async def test_every_list_takes_a_cursor(site: Site) -> None:
    await site.enrol("a", "b")
    runs = [await site.start_run(key, name=key) for key in ("x", "y", "z")]
    listed = await site.admin.get("/v1/runs?limit=2")
    assert [run["name"] for run in listed["items"]] == ["z", "y"]
    rest = await site.admin.get("/v1/runs", params={"limit": 2, "cursor": listed["next_cursor"]})
    assert [run["name"] for run in rest["items"]] == ["x"]
    run = f"/v1/runs/{runs[0]['id']}"
    (cohort,) = (await site.admin.get(f"{run}/cohorts"))["items"]
    for path in (f"{run}/tasks", f"/v1/cohorts/{cohort['id']}/members", f"{run}/events"):
        first = await site.admin.get(path, params={"limit": 1}, headers={"Accept": "application/json"})
        after = {"limit": 1, "cursor": first["next_cursor"]}
        second = await site.admin.get(path, params=after, headers={"Accept": "application/json"})
        assert len(first["items"]) == len(second["items"]) == 1 and first["items"] != second["items"], path


@pytest.mark.parametrize(
    "query", ["cursor=%%%", "cursor=bm9uc2Vuc2U", "limit=0", "limit=201", "limit=x", "status=asleep"]
)
async def test_a_page_that_cannot_be_is_refused(small_site: Site, query: str) -> None:
    response = await small_site.admin.call("GET", f"/v1/runs?{query}")
    assert (response.status_code, code_of(response)) == (422, "invalid-request")


async def test_clients_join_a_run_that_is_going(site: Site) -> None:
    await site.enrol("a")
    path = f"/v1/runs/{(await site.start_run())['id']}"
    (b,) = await site.enrol("b")
    (cohort,) = (await site.admin.get(f"{path}/cohorts"))["items"]
    for _ in range(2):
        joined = await site.admin.call("POST", f"{path}/members", json={"clients": ["a", "b"]})
        assert (joined.status_code, joined.json()["status"]) == (200, "running")
        members = (await site.admin.get(f"/v1/cohorts/{cohort['id']}/members"))["items"]
        assert [member["name"] for member in members] == ["a", "b"]
    assert (await b.call("POST", f"{path}/members", json={"clients": ["b"]})).status_code == 403
    refused = {
        "not-found": (404, {"clients": ["nobody"]}),
        "invalid-request": (422, {"clients": []}),
    }
    for code, (status, body) in refused.items():
        response = await site.admin.call("POST", f"{path}/members", json=body)
        assert (response.status_code, code_of(response)) == (status, code)
    await site.admin.post(f"{path}/cancel", expect=200)
    response = await site.admin.call("POST", f"{path}/members", json={"clients": ["b"]})
    assert (response.status_code, code_of(response)) == (409, "conflict")
    assert "start a new run" in response.json()["detail"]
