"""Recoveries over HTTP: asked for with an erasure or by themselves, shown, and refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.api.site import Site, code_of, until
from tests.integration.api.test_erasure_over_http import (
    NAMES,
    checkpoints,
    completed,
    file,
    run_to_its_end,
    working,
)

pytestmark = pytest.mark.anyio
FEDRS = {"method": "fedrs", "params": {"alpha": 0.3}}


async def test_discovery_lists_the_recoveries_with_their_parameters(small_site: Site) -> None:
    found = (await small_site.admin.get("/v1/erasure/discovery"))["recoveries"]
    assert [one["name"] for one in found] == ["fedrs", "imba_ulrc", "moon", "plain", "quickdrop"]
    by_name = {one["name"]: one for one in found}
    assert [name for name, one in by_name.items() if one["needs_class"]] == ["imba_ulrc"]
    assert by_name["fedrs"]["params"].keys() == {"alpha"} and by_name["plain"]["params"] == {}


@pytest.mark.parametrize("recovery", ["training", {"method": "plain", "params": {}}, FEDRS])
async def test_a_request_names_its_recovery_and_shows_it(site: Site, recovery: Any) -> None:
    agents = await site.enrol(*NAMES)
    async with working(agents):
        run = await run_to_its_end(site)
        body = {"subjects": ["b"], "federation_id": site.federation_id, "recovery": recovery, "recovery_rounds": 1}
        shown = (await site.admin.call("POST", "/v1/erasure-requests:preview", json=body)).json()
        filed = await file(site.admin, "b", federation_id=site.federation_id, recovery=recovery, recovery_rounds=1)
        assert filed.status_code == 202, filed.text
        done = await completed(site.admin, filed.json()["id"])
    is_named = recovery is FEDRS
    assert done["recovery"] == (FEDRS if is_named else None)
    assert shown["recovery"] == ("fedrs" if is_named else "plain")
    rounds = [one["round"] for one in await checkpoints(site, run) if one["is_head"]]
    (retrain,) = [one for one in shown["options"] if one["method"] == "retrain"]
    assert [cohort["recovery_rounds"] for cohort in retrain["cohorts"]] == [int(is_named)]
    assert [line["target_round"] for line in done["lines"]] == rounds


@pytest.mark.parametrize(
    ("recovery", "code"),
    [
        ({"method": "magic"}, "method-unavailable"),
        ({"method": "fedrs", "params": {"alpha": 7}}, "invalid-request"),
        ({"method": "imba_ulrc"}, "method-unavailable"),
        ("magic", "invalid-request"),
    ],
)
async def test_a_recovery_that_cannot_be_is_a_problem_that_says_why(site: Site, recovery: Any, code: str) -> None:
    agents = await site.enrol(*NAMES)
    async with working(agents):
        run = await run_to_its_end(site)
    refused = [await file(site.admin, "b", federation_id=site.federation_id, recovery=recovery)]
    refused.append(await site.admin.call("POST", f"/v1/runs/{run['id']}/recover", json={"recovery": recovery}))
    for response in refused:
        assert code_of(response) == code and response.json()["detail"], response.text


async def test_a_completed_run_recovers_by_itself(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    run: dict[str, Any] = {}

    async def round_reached() -> int:
        found = await site.admin.get(f"/v1/runs/{run['id']}")
        return int(found["round"]) if found["status"] == "completed" else 0

    async def has_recovered() -> bool:
        return await round_reached() == 5

    async with working(agents):
        run = await run_to_its_end(site)
        assert await round_reached() == 3
        body, path = {"recovery": FEDRS, "rounds": 2}, f"/v1/runs/{run['id']}/recover"
        begun = await site.admin.call("POST", path, json=body, headers={"If-Match": '"999"'})
        assert code_of(begun) == "precondition-failed"
        begun = await site.admin.call("POST", path, json=body)
        assert begun.status_code == 200 and begun.json()["status"] == "running", begun.text
        await until(has_recovered, within_s=30)
    viewer = await site.staff("viewer")
    assert code_of(await viewer.call("POST", path, json=body)) == "forbidden"
    (model, *_) = await checkpoints(site, run)
    imba = {"recovery": {"method": "imba_ulrc", "params": {}}, "compare_with": model["id"]}
    response = await site.admin.call("POST", path, json=imba)
    assert code_of(response) == "method-unavailable" and "skewed_class" in response.json()["detail"], response.text
    unknown = await site.admin.call("POST", path, json={**imba, "compare_with": run["id"]})
    assert code_of(unknown) == "not-found"
