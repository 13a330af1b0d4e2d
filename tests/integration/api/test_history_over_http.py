"""What a run keeps of its updates, over HTTP, on both back ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.api.site import Site, code_of

pytestmark = pytest.mark.anyio


async def train(site: Site, **changes: Any) -> str:
    """Two rounds by two clients, with their history settled."""
    a, b = await site.enrol("a", "b")
    run_id = (await site.start_run(stop={"rounds": 2}, **changes))["id"]
    for number in (1, 2):
        await a.train(float(number))
        await b.train(-float(number))
    for _ in range(500):
        run = await site.admin.get(f"/v1/runs/{run_id}")
        (cohort,) = (await site.admin.get(f"/v1/runs/{run_id}/history"))["items"]
        is_kept = cohort["num_sealed"] == 4 or "history" not in changes
        if run["status"] == "completed" and is_kept:
            return str(run_id)
        await asyncio.sleep(0.02)
    raise AssertionError(f"run {run_id} does not settle")


async def test_a_history_says_what_it_covers_and_serves_its_copies(site: Site) -> None:
    policy = {"dtype": "int8", "compression": "none"}
    run_id = await train(site, retention={"updates": "none"}, history={"updates": policy})
    (cohort,) = (await site.admin.get(f"/v1/runs/{run_id}/history"))["items"]
    assert (cohort["cohort"], cohort["rounds"], cohort["missing"], cohort["interval"]) == ("all", [1, 2], [], 1)
    assert cohort["suffices_for"] == ["federaser"]
    assert cohort["report"].startswith("2 rounds from 1 to 2")
    first = await site.admin.get(f"/v1/runs/{run_id}/history/updates?limit=3")
    rest = await site.admin.get(f"/v1/runs/{run_id}/history/updates?cursor={first['next_cursor']}")
    copies = first["items"] + rest["items"]
    assert sorted((one["round"], one["client_name"]) for one in copies) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert sum(one["bytes"] for one in copies) == cohort["sealed_bytes"]
    assert max(one["relative_error"] for one in copies) == cohort["relative_error"] < 0.01
    assert {one["dtype"] for one in copies} == {"int8"}
    in_federation = f"?federation_id={site.federation_id}"
    sealed = await site.admin.call("GET", f"/v1/blobs/{copies[0]['digest']}{in_federation}")
    assert sealed.status_code == 200 and len(sealed.content) == copies[0]["bytes"]
    plain = await site.admin.call("GET", f"/v1/blobs/{copies[0]['source']}{in_federation}")
    assert code_of(plain) == "not-found"


async def test_a_run_without_a_history_says_what_retention_keeps(site: Site) -> None:
    run_id = await train(site)
    (cohort,) = (await site.admin.get(f"/v1/runs/{run_id}/history"))["items"]
    assert (cohort["rounds"], cohort["num_sealed"], cohort["suffices_for"]) == ([1, 2], 0, ["federaser"])
    assert "history.updates is not set" in cohort["report"]
    assert (await site.admin.get(f"/v1/runs/{run_id}/history/updates"))["items"] == []


async def test_a_canary_is_registered_at_enrolment_or_by_the_worker(site: Site) -> None:
    path = f"/v1/federations/{site.federation_id}/clients"
    canary = {"target_class": 3, "seed": 7}
    made = await site.admin.post(path, {"name": "a", "canary": canary})
    shown = (await site.admin.get(f"/v1/clients/{made['client']['id']}"))["canary"]
    assert shown == {**canary, "size": 3, "share": 0.2}
    refused = await site.admin.call("POST", path, json={"name": "b", "canary": {"target_class": -1, "seed": 7}})
    assert code_of(refused) == "invalid-request"
    (plain,) = await site.enrol("b")
    assert (await site.admin.get(f"/v1/clients/{plain.client_id}"))["canary"] is None
    for session in ({"canary": canary}, {}):
        await plain.post("/v1/sessions", {"agent_version": "test", "protocol": 1, **session}, expect=200)
        assert (await site.admin.get(f"/v1/clients/{plain.client_id}"))["canary"] == shown
