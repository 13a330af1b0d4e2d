"""Requests to forget over the API: preview, filing, approval, following, the certificate, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa

from coordinator.engine.messages import ReviewErasure
from coordinator.runtime.accounts import split_token
from coordinator.runtime.signing import SIGNING_KEY
from coordinator.store import due
from coordinator.store import tables as t
from services.audit.verification import check
from tests.integration.api.site import Actor, Site, blob, code_of, has_been_retained, until, update

pytestmark = pytest.mark.anyio
NAMES = ("a", "b", "c", "d")
TREE = {"kind": "tree", "shape": "balanced"}
REQUESTS = "/v1/erasure-requests"


@contextlib.asynccontextmanager
async def working(agents: list[Actor]) -> AsyncIterator[None]:
    """Agents that serve tasks, each with a delta of its own, until they are told to stop."""
    tasks = [asyncio.create_task(_serve(agent, float(1 + index))) for index, agent in enumerate(agents)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome


async def _serve(agent: Actor, value: float) -> None:
    while True:
        response = await agent.call("POST", "/v1/tasks/claim", headers={"Prefer": "wait=2"})
        if response.status_code in (401, 403):
            assert code_of(response) in ("client-erased", "unauthenticated")
            return
        for task in response.json()["tasks"] if response.status_code == 200 else []:
            digest, data = _blob(value, task)
            headers = {"Lethe-Task": task["task_id"]}
            uploaded = await agent.call("PUT", f"/v1/blobs/{digest}", content=data, headers=headers)
            if uploaded.is_success:
                await agent.submit(task, digest)


def _blob(value: float, task: Any) -> tuple[str, bytes]:
    return blob(update(value + 0.25 * task["round"] + len(task["cohort"]) / 64))


async def run_to_its_end(site: Site, **changes: Any) -> Any:
    run = await site.start_run(**{"stop": {"rounds": 3}, **changes})

    async def has_ended() -> bool:
        return (await site.admin.get(f"/v1/runs/{run['id']}"))["status"] == "completed"  # type: ignore[no-any-return]

    await until(has_ended, within_s=30)
    return run


async def file(by: Actor, *subjects: str, key: str = "k", **changes: Any) -> httpx.Response:
    return await by.call("POST", REQUESTS, json={"subjects": subjects, **changes}, headers={"Idempotency-Key": key})


async def completed(by: Actor, erasure_id: str) -> Any:
    async def is_over() -> bool:
        found = await by.get(f"{REQUESTS}/{erasure_id}")
        assert found["status"] not in ("failed", "requires_action"), found["reason"]
        return found["status"] == "completed"  # type: ignore[no-any-return]

    await until(is_over, within_s=30)
    return await by.get(f"{REQUESTS}/{erasure_id}")


async def checkpoints(site: Site, run: Any) -> list[Any]:
    return (await site.admin.get(f"/v1/runs/{run['id']}/checkpoints?limit=200"))["items"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("topology", [{"kind": "flat"}, TREE], ids=["flat", "tree"])
async def test_a_client_is_forgotten_and_the_certificate_verifies(site: Site, topology: Any) -> None:
    agents = await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    async with working(agents):
        run = await run_to_its_end(site, topology=topology)
        response = await file(officer, "b", recovery_rounds=1)
        assert response.status_code == 202, response.text
        filed = response.json()
        assert response.headers["location"] == f"{REQUESTS}/{filed['id']}"
        assert (filed["subjects"], filed["days_left"], filed["scope"]) == (["b"], 29, "client")
        done = await completed(officer, filed["id"])
    assert all(line["done_at"] and line["run"] == "tiny" for line in done["lines"])
    assert done["days_left"] is None
    assert done["created_at"] <= done["fenced_at"] <= done["first_clean_at"] <= done["completed_at"]
    for checkpoint in await checkpoints(site, run):
        lineage = await site.admin.get(f"/v1/checkpoints/{checkpoint['id']}/lineage")
        assert ("b" in lineage["clients"]) == (checkpoint["superseded_by"] == filed["id"])
        assert checkpoint["stored"] == (checkpoint["superseded_by"] is None)
    discovery = await officer.get("/v1/erasure/discovery")
    certificate = await officer.call("GET", f"{REQUESTS}/{filed['id']}/certificate")
    assert certificate.headers["content-type"] == "application/vnd.in-toto+json"
    verdict = check(certificate.content, discovery["public_key"].encode())
    assert verdict.valid, verdict.checks
    assert verdict.statement is not None
    assert {digest for _, digest in verdict.statement.subjects} == {
        checkpoint["digest"] for checkpoint in await checkpoints(site, run) if checkpoint["is_head"]
    }
    shown = await site.admin.get(f"/v1/clients/{agents[1].client_id}")
    assert shown["status"] == "erased"


async def test_superseded_models_are_gone_and_their_metadata_says_so(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    async with working(agents):
        run = await run_to_its_end(site)
        erasure_id = (await file(site.admin, "a", federation_id=site.federation_id)).json()["id"]
        await completed(site.admin, erasure_id)
    (old, *_) = [one for one in await checkpoints(site, run) if one["superseded_by"]]
    assert (old["superseded_by"], old["stored"], old["bytes"]) == (erasure_id, False, 0)
    assert code_of(await site.admin.call("GET", f"/v1/checkpoints/{old['id']}/model")) == "superseded"
    viewer = await site.staff("viewer")
    response = await viewer.call("GET", f"/v1/blobs/{old['digest']}")
    assert (response.status_code, code_of(response)) == (410, "superseded")
    assert (await viewer.call("HEAD", f"/v1/blobs/{old['digest']}")).status_code == 410
    (head,) = [one for one in await checkpoints(site, run) if one["is_head"]]
    assert (await viewer.call("GET", f"/v1/checkpoints/{head['id']}/model")).status_code == 200
    assert (await viewer.get(f"/v1/checkpoints/{old['id']}"))["superseded_by"] == erasure_id


async def _begin(by: Actor, digest: str, data: bytes) -> httpx.Response:
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(data)), "Content-Type": "application/partial-upload"}
    return await by.call("PATCH", f"/v1/blobs/{digest}", content=data[:100], headers=headers)


async def test_an_operator_cannot_bring_an_erased_clients_update_back(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    operator = await site.staff("operator")
    digest, data = _blob(1.0, {"round": 1, "cohort": "all"})
    async with working(agents):
        await run_to_its_end(site)
        assert (await operator.call("GET", f"/v1/blobs/{digest}")).content == data
        assert code_of(await _begin(operator, digest, data)) == "anothers-bytes", "not even a part of it"
        await completed(site.admin, (await file(site.admin, "a", federation_id=site.federation_id)).json()["id"])
    for refused in (
        await operator.call("PUT", f"/v1/blobs/{digest}", content=data),
        await _begin(operator, digest, data),
    ):
        assert code_of(refused) == "superseded"
    async with site.coordinator.database.read() as connection:
        assert not (await connection.execute(sa.select(t.blobs.c.id).where(t.blobs.c.digest == digest))).all()


async def test_what_an_operator_has_begun_to_send_goes_with_the_update_that_it_equals(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    operator = await site.staff("operator")
    digest, data = _blob(1.0, {"round": 1, "cohort": "all"})
    assert (await _begin(operator, digest, data)).status_code == 204
    async with working(agents):
        await run_to_its_end(site)
        erasure_id = (await file(site.admin, "a", federation_id=site.federation_id)).json()["id"]
        await completed(site.admin, erasure_id)
    async with site.coordinator.database.read() as connection:
        assert not (await connection.execute(sa.select(t.blobs.c.id).where(t.blobs.c.digest == digest))).all()
    listed = await site.admin.call("GET", f"{REQUESTS}/{erasure_id}/certificate/artefacts")
    leaves = [json.loads(line) for line in listed.content.splitlines()]
    same = {(one["kind"], one["disposition"]) for one in leaves if one["digest"] == digest}
    assert same == {("update", "deleted"), ("part", "deleted")}


async def test_the_lineage_of_a_reinitialised_model_names_its_parents(small_site: Site) -> None:
    agents = await small_site.enrol(*NAMES)
    async with working(agents):
        run = await run_to_its_end(small_site, topology=TREE)
        request = await file(small_site.admin, "b", federation_id=small_site.federation_id, recovery_rounds=2)
        await completed(small_site.admin, request.json()["id"])
    made = [one for one in await checkpoints(small_site, run) if one["kind"] == "reinit"]
    assert made
    for checkpoint in made:
        lineage = await small_site.admin.get(f"/v1/checkpoints/{checkpoint['id']}/lineage")
        assert lineage["made_by"] == "average"
        assert lineage["parents"] and lineage["contributions"] == [] and lineage["base"] is None
        assert {parent["checkpoint_id"] for parent in lineage["parents"]} <= set(lineage["ancestors"])
        assert lineage["clients"] and "b" not in lineage["clients"]
    cohorts = (await small_site.admin.get(f"/v1/runs/{run['id']}/cohorts"))["items"]
    assert {cohort["kind"] for cohort in cohorts} == {"root", "inner", "leaf"}
    (root,) = [cohort for cohort in cohorts if cohort["kind"] == "root"]
    assert root["parent_id"] is None
    assert any(cohort["parent_id"] == root["id"] for cohort in cohorts)


async def test_a_preview_says_what_the_request_then_does(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    operator = await site.staff("operator")
    async with working(agents):
        await run_to_its_end(site, topology=TREE)
        wanted = {"subjects": ["b"], "recovery_rounds": 2}
        preview = await operator.post(f"{REQUESTS}:preview", wanted, expect=200)
        assert (await site.admin.get(REQUESTS))["items"] == []
        options = {option["method"]: option for option in preview["options"]}
        assert preview["chosen"] == "reinit" and options["reinit"]["applies"]
        assert options["retrain"]["applies"] and options["retrain"]["rounds_to_redo"] == 6
        assert options["reinit"]["num_cohorts_untouched"] == 4
        assert options["reinit"]["client_updates_to_redo"] < options["retrain"]["client_updates_to_redo"]
        assert options["reinit"]["estimated_seconds"] > 0 and options["reinit"]["bytes_to_move"] > 0
        request = await file(await site.staff("compliance"), "b", recovery_rounds=2)
        done = await completed(operator, request.json()["id"])
    assert {(line["cohort"], line["action"]) for line in done["lines"]} == {
        (cohort["cohort"], cohort["action"]) for cohort in options["reinit"]["cohorts"]
    }
    assert (done["method"], done["chosen"]) == ("auto", "reinit")
    certificate = await operator.call("GET", f"{REQUESTS}/{done['id']}/certificate")
    verdict = check(certificate.content, (await operator.get("/v1/erasure/discovery"))["public_key"].encode())
    assert verdict.statement is not None and verdict.statement.predicate.method.name == "reinit"


async def test_a_preview_counts_the_bytes_of_updates_that_are_no_longer_stored(small_site: Site) -> None:
    wanted = {"subjects": ["b"], "federation_id": small_site.federation_id, "method": "retrain"}
    moved: list[int] = []
    async with working(await small_site.enrol("a", "b")):
        for updates in ("all", "none"):
            await run_to_its_end(small_site, key=updates, retention={"updates": updates})
            await until(lambda: has_been_retained(small_site))
            preview = await small_site.admin.post(f"{REQUESTS}:preview", wanted, expect=200)
            moved.append(next(o["bytes_to_move"] for o in preview["options"] if o["method"] == "retrain"))
    assert moved[1] == 2 * moved[0] > 0


async def test_a_preview_says_why_a_method_does_not_apply(small_site: Site) -> None:
    agents = await small_site.enrol("a", "b")
    async with working(agents):
        await run_to_its_end(small_site)
    wanted = {"subjects": ["b"], "federation_id": small_site.federation_id}
    preview = await small_site.admin.post(f"{REQUESTS}:preview", wanted, expect=200)
    options = {option["method"]: option for option in preview["options"]}
    assert preview["chosen"] == "retrain"
    assert not options["reinit"]["applies"] and "sub-cohort" in options["reinit"]["why_not"]
    for name in ("reinit", "pga", "not"):
        figures = ("num_cohorts_untouched", "rounds_to_redo", "client_updates_to_redo", "bytes_to_move")
        assert not options[name]["applies"] and all(options[name][figure] is None for figure in figures)
        assert options[name]["why_not"] and options[name]["cohorts"] == []
    (cohort,) = options["retrain"]["cohorts"]
    assert (cohort["action"], cohort["rounds_to_redo"], cohort["client_updates_to_redo"]) == ("rolled-back", 3, 3)


async def test_the_same_key_finds_the_same_request_and_another_body_is_refused(site: Site) -> None:
    await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    first = await file(officer, "a", needs_approval=True)
    again = await file(officer, "a", needs_approval=True)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert code_of(await file(officer, "b")) == "idempotency-key-reused"
    response = await officer.call("POST", REQUESTS, json={"subjects": ["a"]})
    assert code_of(response) == "idempotency-key-missing"
    assert len((await officer.get(REQUESTS))["items"]) == 1


async def test_a_request_that_needs_approval_waits_for_it(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    async with working(agents):
        await run_to_its_end(site)
        filed = (await file(officer, "a", needs_approval=True)).json()
        assert filed["status"] == "awaiting_approval"
        path = f"{REQUESTS}/{filed['id']}"
        assert (await officer.call("GET", path)).headers["etag"] == '"1"'
        assert code_of(await officer.call("GET", f"{path}/certificate")) == "certificate-not-ready"
        duplicate = (await file(officer, "a", key="other")).json()
        assert duplicate["duplicate_of"] == filed["id"]
        await officer.post(f"{path}/approve", expect=200)
        await completed(officer, filed["id"])
        assert (await completed(officer, duplicate["id"]))["lines"] == []
    own = await officer.call("GET", f"{path}/certificate")
    assert own.content == (await officer.call("GET", f"{REQUESTS}/{duplicate['id']}/certificate")).content
    assert code_of(await officer.call("POST", f"{path}/approve")) == "conflict"
    assert code_of(await officer.call("POST", f"{path}/cancel")) == "conflict"


@pytest.mark.parametrize("verdict", ["approve", "deny", "cancel"])
async def test_a_verdict_on_a_request_that_changed_meanwhile_is_refused(small_site: Site, verdict: str) -> None:
    await small_site.enrol(*NAMES)
    officer = await small_site.staff("compliance")
    path = f"{REQUESTS}/{(await file(officer, 'a', needs_approval=True)).json()['id']}"
    etag = (await officer.call("GET", path)).headers["etag"]
    body = {"reason": "no"} if verdict == "deny" else None
    for wrong in ('"7"', "nonsense"):
        response = await officer.call("POST", f"{path}/{verdict}", json=body, headers={"If-Match": wrong})
        assert (response.status_code, code_of(response)) == (412, "precondition-failed")
    assert (await officer.get(path))["status"] == "awaiting_approval"
    judged = await officer.call("POST", f"{path}/{verdict}", json=body, headers={"If-Match": etag})
    assert judged.status_code == 200 and judged.headers["etag"] != etag


async def test_a_refused_certificate_asks_for_a_person_and_can_be_tried_again(small_site: Site) -> None:
    await small_site.enrol(*NAMES)
    officer = await small_site.staff("compliance")
    key = small_site.coordinator.settings.evidence_path / SIGNING_KEY
    await officer.get("/v1/erasure/discovery")
    good = key.read_text()
    key.write_text("not a key")
    path = f"{REQUESTS}/{(await file(officer, 'a')).json()['id']}"

    async def waits_for_a_person() -> bool:
        return (await officer.get(path))["status"] == "requires_action"  # type: ignore[no-any-return]

    await until(waits_for_a_person)
    found = await officer.get(path)
    assert "the certificate was refused" in found["reason"] and SIGNING_KEY in found["reason"]
    key.write_text(good)
    for _ in range(2):  # nothing happens by itself
        await small_site.coordinator.shell.handle(ReviewErasure(UUID(found["id"])))
    assert (await officer.get(path))["version"] == found["version"]
    stale = await officer.call("POST", f"{path}/retry", headers={"If-Match": '"1"'})
    assert code_of(stale) == "precondition-failed"
    await officer.post(f"{path}/retry", expect=200)
    await completed(officer, found["id"])
    assert code_of(await officer.call("POST", f"{path}/retry")) == "conflict"


async def test_a_request_under_way_is_known_with_all_cohorts_of_its_runs_and_of_no_other(site: Site) -> None:
    """By their number the clock knows how often to look at it."""
    a, b, c = await site.enrol("a", "b", "c")
    await site.start_run("one", topology={"kind": "bi_model"})
    await site.start_run("two", clients=["b", "c"])
    officer = await site.staff("compliance")
    for actor in (a, b, c):
        for task in await actor.claim():
            await actor.submit(task, await actor.put_blob(update(1.0), task))
    request = (await file(officer, "a")).json()["id"]

    async def is_fenced() -> bool:
        return (await officer.get(f"{REQUESTS}/{request}"))["fenced_at"] is not None

    await until(is_fenced)
    async with site.coordinator.database.read() as connection:
        assert await due.erasures_under_way(connection) == {UUID(request): 4}


async def test_a_denied_request_keeps_the_reason_and_changes_nothing(site: Site) -> None:
    await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    filed = (await file(officer, "a", needs_approval=True)).json()
    path = f"{REQUESTS}/{filed['id']}"
    assert code_of(await officer.call("POST", f"{path}/deny", json={})) == "invalid-request"
    denied = await officer.post(f"{path}/deny", {"reason": "the data is under litigation hold"}, expect=200)
    assert (denied["status"], denied["reason"]) == ("denied", "the data is under litigation hold")
    assert (await site.admin.get(f"/v1/federations/{site.federation_id}/clients"))["items"][0]["status"] == "active"
    other = (await file(officer, "a", key="other", needs_approval=True)).json()
    assert other["duplicate_of"] is None
    assert (await officer.post(f"{REQUESTS}/{other['id']}/cancel", expect=200))["status"] == "cancelled"


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("viewer", {"discover", "list", "look"}),
        ("operator", {"discover", "list", "look", "preview"}),
        ("compliance", {"discover", "list", "look", "preview", "file", "approve", "deny", "cancel"}),
        ("admin", {"discover", "list", "look", "preview", "file", "approve", "deny", "cancel"}),
    ],
)
async def test_a_role_may_do_what_the_table_says(small_site: Site, role: str, allowed: set[str]) -> None:
    await small_site.enrol(*NAMES, "e")
    officer = await small_site.staff("compliance")
    ids = [(await file(officer, name, key=name, needs_approval=True)).json()["id"] for name in ("a", "b", "c")]
    somebody = await small_site.staff(role)
    tried = {
        "discover": await somebody.call("GET", "/v1/erasure/discovery"),
        "list": await somebody.call("GET", REQUESTS),
        "look": await somebody.call("GET", f"{REQUESTS}/{ids[0]}"),
        "preview": await somebody.call("POST", f"{REQUESTS}:preview", json={"subjects": ["d"]}),
        "file": await file(somebody, "e", key="mine"),
        "approve": await somebody.call("POST", f"{REQUESTS}/{ids[0]}/approve"),
        "deny": await somebody.call("POST", f"{REQUESTS}/{ids[1]}/deny", json={"reason": "no"}),
        "cancel": await somebody.call("POST", f"{REQUESTS}/{ids[2]}/cancel"),
    }
    assert {name for name, response in tried.items() if response.is_success} == allowed
    assert all(code_of(response) == "forbidden" for response in tried.values() if not response.is_success)


async def test_a_client_files_for_itself_and_for_nobody_else(site: Site) -> None:
    a, b, *_ = await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    both = (await file(officer, "a", "c", needs_approval=True)).json()
    await officer.post(f"{REQUESTS}/{both['id']}/cancel", expect=200)
    assert code_of(await file(a, "b")) == "forbidden"
    assert code_of(await file(a, "a", "b")) == "forbidden"
    assert code_of(await a.call("POST", f"{REQUESTS}:preview", json={"subjects": ["b"]})) == "forbidden"
    assert (await a.call("POST", f"{REQUESTS}:preview", json={"subjects": ["a"]})).status_code == 200
    filed = await file(a, "a", needs_approval=True)
    assert filed.status_code == 202, filed.text
    assert filed.json()["requested_by"] == f"client:{a.client_id}"
    path = f"{REQUESTS}/{filed.json()['id']}"
    assert code_of(await a.call("POST", f"{path}/approve")) == "forbidden"
    assert [one["id"] for one in (await a.get(REQUESTS))["items"]] == [filed.json()["id"]]
    assert code_of(await a.call("GET", f"{REQUESTS}/{both['id']}")) == "not-found"
    assert code_of(await b.call("GET", path)) == "not-found"
    assert code_of(await b.call("GET", f"{path}/events")) == "not-found"


async def test_an_erased_clients_agent_is_told_to_stop(small_site: Site) -> None:
    a, b, *_ = await small_site.enrol(*NAMES)
    await small_site.start_run(training={"algorithm": "fedavg", "quorum": 1}, stop={"rounds": 100})
    (task,) = await a.claim()
    filed = (await file(small_site.admin, "a", federation_id=small_site.federation_id)).json()

    async def is_fenced() -> bool:
        return (await small_site.admin.get(f"{REQUESTS}/{filed['id']}"))["fenced_at"] is not None

    await until(is_fenced)
    small_site.app.state.context.authenticator.forget([split_token(a.token)[0]])
    for response in (await a.submit(task, None), await a.call("POST", "/v1/tasks/claim")):
        assert code_of(response) in ("client-erased", "unauthenticated")
    (renewed,) = await b.claim()
    assert renewed["epoch"] == 1


async def test_the_events_of_a_request_can_be_followed_and_resumed(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    async with working(agents):
        await run_to_its_end(site)
        erasure_id = (await file(officer, "a")).json()["id"]
        path = f"{REQUESTS}/{erasure_id}/events"
        stream = (await officer.call("GET", path)).text  # ends with the request
    events = [json.loads(line.removeprefix("data:")) for line in stream.splitlines() if line.startswith("data:")]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    statuses = [event["data"]["status"] for event in events if event["type"] == "ErasureMoved"]
    assert statuses[0] == "fenced" and statuses[-2:] == ["verifying", "completed"]
    page = await officer.get(path, headers={"Accept": "application/json"}, params={"after": 2, "limit": 200})
    assert page["items"] == events[2:]
    rest = await officer.call("GET", path, headers={"Last-Event-ID": str(events[-2]["seq"])})
    assert rest.text.count("data:") == 1
    assert (await officer.call("GET", path, headers={"Last-Event-ID": str(len(events))})).status_code == 204


async def test_impossible_requests_are_refused_with_a_reason(site: Site) -> None:
    agents = await site.enrol("a", "b")
    officer = await site.staff("compliance")
    await site.start_run(training={"algorithm": "fedavg", "quorum": 2})

    async def refusal(path: str = REQUESTS, **body: Any) -> tuple[int, str, str]:
        response = await officer.call("POST", path, json=body, headers={"Idempotency-Key": "k"})
        return response.status_code, code_of(response), response.json()["detail"]

    for path in (REQUESTS, f"{REQUESTS}:preview"):
        assert (await refusal(path, subjects=["nobody"]))[:2] == (404, "not-found")
        assert (await refusal(path, subjects=["a"], method="wishful"))[:2] == (409, "method-unavailable")
        assert (await refusal(path, subjects=["a"], scope="samples"))[:2] == (422, "invalid-request")
        assert (await refusal(path, subjects=["a", "a"]))[1] == "invalid-request"
        assert (await refusal(path, subjects=[]))[1] == "invalid-request"
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    for deadline in (yesterday, "9999-12-31T23:59:59-14:00", "2030-01-01T00:00:00"):
        assert (await refusal(subjects=["a"], legal_deadline=deadline))[:2] == (422, "invalid-request")
    assert (await officer.get(REQUESTS))["items"] == []
    assert (await agents[0].claim())[0]["epoch"] == 0


async def test_a_client_is_erased_once(site: Site) -> None:
    agents = await site.enrol(*NAMES)
    officer = await site.staff("compliance")
    async with working(agents):
        await run_to_its_end(site)
        await completed(officer, (await file(officer, "a")).json()["id"])
    assert code_of(await file(officer, "a", key="again")) == "already-erased"
    assert code_of(await officer.call("POST", f"{REQUESTS}:preview", json={"subjects": ["a"]})) == "already-erased"


async def test_a_client_that_never_took_part_is_forgotten_too(site: Site) -> None:
    await site.enrol("a", "b")
    officer = await site.staff("compliance")
    filed = (await file(officer, "a")).json()
    assert (await completed(officer, filed["id"]))["lines"] == []


async def test_requests_of_another_federation_do_not_exist(small_site: Site) -> None:
    await small_site.enrol("a", "b")
    officer = await small_site.staff("compliance")
    filed = (await file(officer, "a", needs_approval=True)).json()
    elsewhere = await small_site.federation("oncology")
    foreigner = await small_site.staff("admin", elsewhere)
    path = f"{REQUESTS}/{filed['id']}"
    for method, address, body in (
        ("GET", path, None),
        ("GET", f"{path}/events", None),
        ("GET", f"{path}/certificate", None),
        ("POST", f"{path}/approve", None),
        ("POST", f"{path}/cancel", None),
        ("POST", f"{path}/deny", {"reason": "no"}),
        ("POST", f"{REQUESTS}:preview", {"subjects": ["a"], "federation_id": small_site.federation_id}),
        ("GET", f"{REQUESTS}?federation_id={small_site.federation_id}", None),
    ):
        assert code_of(await foreigner.call(method, address, json=body)) == "not-found", (method, address)
    assert code_of(await file(foreigner, "a", federation_id=small_site.federation_id)) == "not-found"
    assert (await foreigner.get(REQUESTS))["items"] == []
