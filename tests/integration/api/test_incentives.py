"""A federation that divides its clients among jobs, over HTTP: who is asked, what they earn, what an erasure leaves."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.integration.api.site import Actor, Site, code_of, until, update

pytestmark = pytest.mark.anyio
NAMES = [f"c{n}" for n in range(6)]
INCENTIVES = {"prices": {"megabyte": 15.0}, "fixed": 1.0}


def declared(number: int) -> dict[str, Any]:
    return {"samples": 80 + 20 * (number % 3), "seconds": 10.0, "bytes": 1_000_000, "stored_bytes": 0}


async def enrol(site: Site) -> list[Actor]:
    path = f"/v1/federations/{site.federation_id}/clients"
    issued = [
        await site.admin.post(path, {"name": name, "resources": declared(number)}) for number, name in enumerate(NAMES)
    ]
    assert issued[0]["client"]["resources"] == declared(0)
    return [Actor(site.http, one["token"], one["client"]["id"]) for one in issued]


async def divide(site: Site, allocation: str | None = "game", **incentives: Any) -> Any:
    body = {"allocation": allocation, "incentives": {**INCENTIVES, **incentives}}
    answer = await site.admin.call("PATCH", f"/v1/federations/{site.federation_id}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def two_jobs(site: Site) -> tuple[list[Actor], list[str]]:
    actors = await enrol(site)
    await divide(site)
    runs = [
        (await site.start_run(name, name=name, reward=reward, stop={"rounds": 2}))["id"]
        for name, reward in (("first", 120.0), ("second", 100.0))
    ]
    return actors, runs


async def periods(site: Site) -> list[dict[str, Any]]:
    return (await site.admin.get(f"/v1/federations/{site.federation_id}/periods"))["items"]  # type: ignore[no-any-return]


async def ledger(site: Site) -> list[dict[str, Any]]:
    found = await site.admin.get(f"/v1/federations/{site.federation_id}/ledger", params={"limit": 200})
    return found["items"]  # type: ignore[no-any-return]


async def work(actors: list[Actor], site: Site, runs: list[str]) -> None:
    """Everybody answers what it is asked, until the runs are completed."""

    async def done() -> bool:
        for number, actor in enumerate(actors):
            response = await actor.call("POST", "/v1/tasks/claim", headers={"Prefer": "wait=0"})
            for task in response.json()["tasks"] if response.status_code == 200 else []:
                value = 0.25 * task["round"] + number / 8 + (0.5 if task["run_id"] == runs[0] else 0.75)
                answer = await actor.submit(task, await actor.put_blob(update(value), task))
                assert answer.status_code == 200, answer.text
        return all([(await site.admin.get(f"/v1/runs/{run}"))["status"] == "completed" for run in runs])

    await until(done, 60)


async def test_each_job_is_served_by_its_share_and_pays_it(site: Site) -> None:
    actors, runs = await two_jobs(site)
    newest, *_ = await periods(site)
    await work(actors, site, runs)

    assert [job["id"] for job in newest["jobs"]] == runs and newest["strategy"] == "game"
    assert newest["clients"][0]["samples"] == 80 and set(newest["serves"]) == set(NAMES)
    for place, run in enumerate(runs):
        models = (await site.admin.get(f"/v1/runs/{run}/checkpoints"))["items"]
        lineage = await site.admin.get(f"/v1/checkpoints/{models[-1]['id']}/lineage")
        served = {one["client_name"] for one in lineage["contributions"]}
        assert served == {name for name, job in newest["serves"].items() if job == run}
        shares = sum(len(one["clients"]) * one["shares"][place] for one in newest["populations"])
        assert abs(len(served) - shares) <= 1
    entries = await ledger(site)
    paid = [entry for entry in entries if entry["kind"] == "reward" and entry["job_id"] == runs[0]]
    assert sum(entry["amounts"]["share"] for entry in paid) == pytest.approx(2 * 120.0)
    assert all(entry["amounts"]["computation"] == pytest.approx(0.1) for entry in entries if entry["kind"] == "cost")
    own = (await actors[0].get("/v1/ledger", params={"limit": 200}))["items"]
    assert own == [entry for entry in entries if entry["client_name"] == "c0"] != []
    log = (await site.admin.get(f"/v1/runs/{runs[0]}/events", headers={"Accept": "application/json"}))["items"]
    assert [event["data"]["period"] for event in log if event["type"] == "CohortAllotted"] == [2, 3]


async def test_a_preview_decides_what_the_next_period_would(small_site: Site) -> None:
    site = small_site
    await enrol(site)
    path = f"/v1/federations/{site.federation_id}/periods/next"
    assert (await site.admin.get(path))["jobs"] == []
    run = await site.start_run("one")
    shown = await site.admin.get(path, params={"strategy": "greedy"})
    assert (shown["strategy"], shown["serves"]) == ("greedy", dict.fromkeys(NAMES, run["id"]))
    assert await periods(site) == []
    changed = await divide(site, "round_robin")
    assert changed["allocation"] == "round_robin" and changed["incentives"]["fixed"] == 1.0
    shown = await site.admin.get(path)
    assert (shown["strategy"], shown["number"]) == ("round_robin", 2)
    assert (await divide(site, None))["allocation"] is None


async def test_what_does_not_fit_is_refused(small_site: Site) -> None:
    site = small_site
    actors = await enrol(site)
    path = f"/v1/federations/{site.federation_id}"
    for body in ({"allocation": "auction"}, {}, {"allocation": "game", "incentives": {"pool": -1}}):
        assert code_of(await site.admin.call("PATCH", path, json=body)) == "invalid-request"
    bad = await site.admin.call("POST", f"{path}/clients", json={"name": "x", "resources": {"seconds": -1}})
    assert code_of(bad) == "invalid-request"
    viewer, stranger = await site.staff("viewer"), await site.staff("operator", await site.federation("other"))
    assert code_of(await viewer.call("PATCH", path, json={"allocation": "game"})) == "forbidden"
    assert code_of(await stranger.call("PATCH", path, json={"allocation": "game"})) == "not-found"
    for what in ("periods", "periods/next", "ledger"):
        assert (await viewer.call("GET", f"{path}/{what}")).status_code == 200
        assert code_of(await stranger.call("GET", f"{path}/{what}")) == "not-found"
        assert code_of(await actors[0].call("GET", f"{path}/{what}")) == "forbidden"
    assert code_of(await viewer.call("GET", "/v1/ledger")) == "forbidden"
    assert (await actors[0].get("/v1/ledger"))["items"] == []


async def test_a_federation_may_divide_from_its_beginning(small_site: Site) -> None:
    made = await small_site.admin.post("/v1/federations", {"name": "new", "allocation": "game"})
    assert (made["allocation"], made["incentives"]) == ("game", None)
    assert await small_site.admin.get(f"/v1/federations/{made['id']}") == made


async def test_an_erasure_takes_the_leavers_part_and_says_what_it_shaped(site: Site) -> None:
    actors, runs = await two_jobs(site)
    await work(actors, site, runs)
    body = {"federation_id": site.federation_id, "subjects": ["c0"], "reward": 300.0}
    filed = await site.admin.post("/v1/erasure-requests", body, expect=202, headers={"Idempotency-Key": "forget"})
    path = f"/v1/erasure-requests/{filed['id']}"

    async def is_completed() -> bool:
        return (await site.admin.get(path))["status"] == "completed"  # type: ignore[no-any-return]

    await until_fenced(site, path)
    newest = (await periods(site))[0]
    assert [(job["id"], job["pool"]) for job in newest["jobs"]] == [(filed["id"], 300.0)]
    await work(actors[1:], site, runs)
    await until(is_completed, 60)
    for period in await periods(site):
        assert '"c0"' not in json.dumps(period)
        assert not period["populations"] or period["number"] == newest["number"]
    left = await ledger(site)
    assert all((entry["amounts"] == {}) == (entry["client_name"] == "c0") for entry in left)
    client = await site.admin.get(f"/v1/clients/{actors[0].client_id}")
    assert client["resources"] is None
    certificate = await site.admin.get(f"{path}/certificate")
    predicate = json.loads(base64.b64decode(certificate["payload"]))["predicate"]
    assert "allocation" in {one["aspect"] for one in predicate["still_shaped_by"]}
    assert predicate["artefacts"]["kinds"]["ledger"]["dispositions"] == {
        "scrubbed": len([e for e in left if e["client_name"] == "c0"])
    }


async def until_fenced(site: Site, path: str) -> None:
    async def is_fenced() -> bool:
        return (await site.admin.get(path))["fenced_at"] is not None

    await until(is_fenced, 30)
