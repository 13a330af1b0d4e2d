"""What people look at, over HTTP: a run as a picture, as curves and as a grid, lineage, workers, the system, keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.api.site import Actor, Site, code_of, until

pytestmark = pytest.mark.anyio


async def trained(site: Site, *names: str, rounds: int = 2, **changes: Any) -> tuple[str, list[Actor]]:
    """A run of these clients that is completed."""
    clients = await site.enrol(*names)
    run = await site.start_run(stop={"rounds": rounds}, **changes)
    for _ in range(rounds):
        for place, client in enumerate(clients):
            await client.train(0.1 * place + 0.1)
    await until(lambda: is_over(site, run["id"]))
    return run["id"], clients


async def is_over(site: Site, run_id: str) -> bool:
    return bool((await site.admin.get(f"/v1/runs/{run_id}"))["status"] == "completed")


async def erased(site: Site, name: str, staying: list[Actor], rounds: int) -> str:
    """A request that has forgotten the client, with those who stay training again."""
    body = {"federation_id": site.federation_id, "subjects": [name]}
    request = await site.admin.post("/v1/erasure-requests", body, expect=202, headers={"Idempotency-Key": name})
    for _ in range(rounds):
        for client in staying:
            await client.train(0.3)

    async def is_done() -> bool:
        return bool((await site.admin.get(f"/v1/erasure-requests/{request['id']}"))["status"] == "completed")

    await until(is_done)
    return request["id"]  # type: ignore[no-any-return]


async def test_a_topology_has_cohorts_members_and_heads(site: Site) -> None:
    run_id, _ = await trained(site, "a", "b", "c")
    found = await site.admin.get(f"/v1/runs/{run_id}/topology?members=2")
    (cohort,) = found["cohorts"]
    assert (found["kind"], found["plane"]) == ("flat", None)
    assert [member["name"] for member in cohort["members"]] == ["a", "b"]
    assert (cohort["num_members"], cohort["members_left_off"], cohort["round"]) == (3, 1, 2)
    assert cohort["fences"] == [] and cohort["head_digest"].startswith("sha256:")
    none = await site.admin.get(f"/v1/runs/{run_id}/topology?members=0")
    assert none["cohorts"][0]["members"] == [] and none["cohorts"][0]["members_left_off"] == 3


async def test_series_have_a_point_for_each_round(site: Site) -> None:
    run_id, _ = await trained(site, "a", "b", rounds=3)
    found = await site.admin.get(f"/v1/runs/{run_id}/series?metric=clients&metric=seconds&metric=bytes_received")
    by_name = {one["name"]: one for one in found["metrics"]}
    assert set(by_name) == {"clients", "seconds", "bytes_received"}
    assert [(point["round"], point["value"]) for point in by_name["clients"]["points"]] == [(1, 2), (2, 2), (3, 2)]
    assert by_name["clients"]["total"] == 3 and by_name["seconds"]["unit"] == "seconds"
    sizes = {point["value"] for point in by_name["bytes_received"]["points"]}
    assert len(sizes) == 1 and min(sizes) > 0
    assert found["fences"] == [] and found["cohorts_left_off"] == 0


async def test_a_grid_says_who_did_what(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    run = await site.start_run(stop={"rounds": 2}, max_attempts=1, training={"algorithm": "fedavg", "quorum": 1})
    await a.train(0.1)
    (task,) = await b.claim()
    failure = {"lease_token": task["lease_token"], "retryable": False, "reason": "no memory"}
    await b.post(f"/v1/tasks/{task['task_id']}/failure", failure, expect=200)
    await until(lambda: has_round(site, run["id"], 2))
    found = await site.admin.get(f"/v1/runs/{run['id']}/grid")
    assert found["rounds"] == [1, 2] and found["left_off"] == 0
    assert {row["name"]: row["cells"] for row in found["clients"]} == {"a": ["d", "o"], "b": ["f", "o"]}
    assert set(found["codes"]) == set("dlfro-")
    first = await site.admin.get(f"/v1/runs/{run['id']}/grid?clients=1&rounds_from=1&rounds_to=1")
    assert [row["name"] for row in first["clients"]] == ["a"] and first["left_off"] == 1
    second = await site.admin.get(f"/v1/runs/{run['id']}/grid?clients=1&cursor={first['next_cursor']}")
    assert [row["name"] for row in second["clients"]] == ["b"] and second["next_cursor"] is None


async def has_round(site: Site, run_id: str, number: int) -> bool:
    return any(one["number"] == number for one in (await site.admin.get(f"/v1/runs/{run_id}/rounds"))["items"])


async def test_bad_windows_and_foreign_cohorts_are_refused(site: Site) -> None:
    run_id, _ = await trained(site, "a", rounds=1)
    backwards = await site.admin.call("GET", f"/v1/runs/{run_id}/grid?rounds_from=5&rounds_to=2")
    assert (backwards.status_code, code_of(backwards)) == (422, "invalid-request")
    strange = "01890000-0000-7000-8000-000000000000"
    for path in (f"series?cohort={strange}", f"grid?cohort={strange}"):
        assert code_of(await site.admin.call("GET", f"/v1/runs/{run_id}/{path}")) == "not-found"
    for path in ("topology", "series", "grid"):
        assert code_of(await site.admin.call("GET", f"/v1/runs/{strange}/{path}")) == "not-found"


async def test_another_federation_sees_nothing(site: Site) -> None:
    run_id, (client,) = await trained(site, "a", rounds=1)
    stranger = await site.staff("viewer", await site.federation("elsewhere"))
    checkpoints = (await site.admin.get(f"/v1/runs/{run_id}/checkpoints"))["items"]
    for path in (
        f"runs/{run_id}/topology",
        f"runs/{run_id}/series",
        f"runs/{run_id}/grid",
        f"clients/{client.client_id}/tasks",
        f"checkpoints/{checkpoints[-1]['id']}/lineage/edges",
        f"federations/{site.federation_id}/workers",
        f"federations/{site.federation_id}/events",
        f"federations/{site.federation_id}/events/stream",
    ):
        assert code_of(await stranger.call("GET", f"/v1/{path}")) == "not-found"


async def test_an_erased_client_has_no_name_in_any_view(site: Site) -> None:
    """From the fence on the views show those who stay, and what became of the cohorts."""
    run_id, (_, *staying) = await trained(site, "leaver", "stayer-a", "stayer-b")
    erasure_id = await erased(site, "leaver", staying, rounds=2)
    topology = await site.admin.get(f"/v1/runs/{run_id}/topology")
    (cohort,) = topology["cohorts"]
    assert [fence["erasure_id"] for fence in cohort["fences"]] == [erasure_id]
    assert cohort["fences"][0]["epoch"] == cohort["epoch"] and not cohort["fences"][0]["reinitialised"]
    series = await site.admin.get(f"/v1/runs/{run_id}/series")
    assert [(fence["erasure_id"], fence["round"]) for fence in series["fences"]] == [(erasure_id, 2)]
    grid = await site.admin.get(f"/v1/runs/{run_id}/grid")
    assert [row["name"] for row in grid["clients"]] == ["stayer-a", "stayer-b"]
    workers = await site.admin.get(f"/v1/federations/{site.federation_id}/workers")
    assert [one["client_name"] for one in workers["items"]] == ["stayer-a", "stayer-b"]
    newest = (await site.admin.get(f"/v1/runs/{run_id}/checkpoints"))["items"][-1]
    edges = await site.admin.get(f"/v1/checkpoints/{newest['id']}/lineage/edges")
    assert "leaver" not in f"{topology} {series} {grid} {workers} {edges}"


async def test_a_cohort_named_after_an_erased_client_is_shown_without_a_name(site: Site) -> None:
    run_id, (_, *staying) = await trained(site, "leaver", "stayer-a", rounds=1, topology={"kind": "isolated"})
    erasure_id = await erased(site, "leaver", staying, rounds=0)
    topology = await site.admin.get(f"/v1/runs/{run_id}/topology")
    (nameless,) = [one for one in topology["cohorts"] if one["name"] is None]
    assert nameless["group"] is None and [fence["erasure_id"] for fence in nameless["fences"]] == [erasure_id]
    series = await site.admin.get(f"/v1/runs/{run_id}/series?metric=clients&cohort={nameless['id']}")
    assert "leaver" not in f"{topology} {series}"


async def test_lineage_is_told_as_edges(site: Site) -> None:
    run_id, (a, _) = await trained(site, "a", "b", rounds=3)
    newest = (await site.admin.get(f"/v1/runs/{run_id}/checkpoints"))["items"][-1]
    path = f"/v1/checkpoints/{newest['id']}/lineage/edges"
    found = await site.admin.get(f"{path}?depth=3")
    assert [node["round"] for node in found["nodes"]] == [3, 2, 1, 0] and not found["nodes_left_off"]
    parents = [edge for edge in found["edges"] if edge["kind"] == "parent"]
    assert [(edge["from"], edge["to"]) for edge in parents] == [
        (older["checkpoint_id"], newer["checkpoint_id"])
        for newer, older in zip(found["nodes"], found["nodes"][1:], strict=False)
    ]
    updates = [edge for edge in found["edges"] if edge["kind"] == "update"]
    assert len(updates) == 6 and {edge["num_samples"] for edge in updates} == {10}
    own = await site.admin.get(f"{path}?depth=1&client={a.client_id}")
    assert len(own["nodes"]) == 2 and own["nodes_left_off"]
    assert {edge["client_id"] for edge in own["edges"] if edge["kind"] == "update"} == {a.client_id}


async def test_workers_are_waiting_working_away_or_never_seen(site: Site) -> None:
    a, b, _ = await site.enrol("a", "b", "c")
    await site.start_run(clients=["a", "b"])
    await a.post(
        "/v1/sessions",
        {"agent_version": "7", "protocol": 1, "devices": [{"kind": "cuda", "name": "A100"}]},
        expect=200,
    )
    (task,) = await a.claim()
    await b.train(0.1)
    first = await site.admin.get(f"/v1/federations/{site.federation_id}/workers?limit=2")
    rest = await site.admin.get(f"/v1/federations/{site.federation_id}/workers?cursor={first['next_cursor']}")
    by_name = {one["client_name"]: one for one in [*first["items"], *rest["items"]]}
    assert {name: one["status"] for name, one in by_name.items()} == {"a": "working", "b": "waiting", "c": "never"}
    assert by_name["a"]["task_in_hand"]["task_id"] == task["task_id"]
    assert by_name["a"]["device"]["name"] == "A100" and by_name["a"]["version"] == "7"
    assert by_name["b"]["tasks_done"] == 1 and by_name["b"]["bytes_received"] > 0
    failure = {"lease_token": task["lease_token"], "retryable": True, "reason": "no memory"}
    await a.post(f"/v1/tasks/{task['task_id']}/failure", failure, expect=200)
    found = (await site.admin.get(f"/v1/federations/{site.federation_id}/workers"))["items"][0]
    assert found["last_failure"]["reason"] == "no memory"


async def test_tasks_of_a_client_come_newest_first(site: Site) -> None:
    _, (a, _) = await trained(site, "a", "b", rounds=3)
    path = f"/v1/clients/{a.client_id}/tasks"
    first = await site.admin.get(f"{path}?limit=2")
    rest = await site.admin.get(f"{path}?cursor={first['next_cursor']}")
    assert [task["round"] for task in [*first["items"], *rest["items"]]] == [3, 2, 1]
    assert {task["client_id"] for task in first["items"]} == {a.client_id}


async def test_the_system_is_for_its_admin(site: Site) -> None:
    await trained(site, "a", rounds=1)
    found = await site.admin.get("/v1/system")
    assert found["database"]["ok"] and found["database"]["kind"] in ("sqlite", "postgres")
    assert found["blobs"]["objects"] > 0 and found["blobs"]["bytes"] > 0
    assert found["storage_by_federation"][0]["federation_id"] == site.federation_id
    assert found["storage_by_federation"][0]["quota_bytes"] > 0
    assert {"clockwork", "chores"} <= {one["name"] for one in found["background"] if one["state"] == "up"}
    assert found["redis"] is None and found["queue"]["jobs_by_status"] is not None
    (key,) = (await site.http.get("/v1/keys")).json()
    assert found["keys"]["signing_key_id"] == key["key_id"]
    for role in ("admin", "operator"):
        somebody = await site.staff(role)
        assert code_of(await somebody.call("GET", "/v1/system")) == "forbidden"
