"""Both clients have a method for every operation of the contract, and send what the contract describes.

Each line below calls a method; the requests that it makes are caught and looked up in openapi/v1.json.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import jsonschema_rs
import pytest

from lethe import AsyncClient, Client, LetheError
from lethe.client.asynchronous.erasures import Filing, Wish
from services.wire.v1.erasure import ErasureCreate, ErasurePreviewRequest
from tests.support import samples

CONTRACT = json.loads((Path(__file__).parents[3] / "openapi" / "v1.json").read_text("utf-8"))
ID = samples.id_of("anything")
LEASE = {"lease_token": "t"}
FAILURE = {**LEASE, "retryable": True, "reason": "why"}
RESULT = {**LEASE, "num_samples": 3}
SESSION = {"agent_version": "1", "protocol": 1}
DROPPED = {"through": samples.AT}
RUN_SPEC = samples.run()["spec"]


def template(path: str) -> re.Pattern[str]:
    return re.compile(
        "".join("[^/]+" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{\w+\})", path))
    )


OPERATIONS = {
    (method.upper(), path): operation
    for path, operations in CONTRACT["paths"].items()
    for method, operation in operations.items()
    if method != "parameters"
}
ADDRESSES = {key: template(key[1]) for key in OPERATIONS}
HANDLES = {
    "/v1/runs/": samples.run(),
    "/v1/erasure-requests/": samples.erasure(),
    "/v1/checkpoints/": samples.checkpoint(),
    "/v1/clients/": samples.client(),
    "/v1/cohorts/": samples.cohort(),
}
"""What GETs of single things answer, so that their handles can be tried as well."""

# operation: the call; a handle's method is given as (group, method, arguments…)
CALLS: dict[str, Callable[[Any], Any] | tuple[str, str, tuple[Any, ...]]] = {
    "get_topology": ("runs", "topology", ()),
    "get_series": ("runs", "series", ("accuracy", "loss")),
    "get_grid": ("runs", "grid", ()),
    "get_lineage_edges": ("checkpoints", "lineage_edges", ()),
    "list_client_tasks": ("clients", "tasks", ()),
    "list_workers": lambda c: c.clients.workers(federation=ID),
    "get_system": lambda c: c.system(),
    "list_keys": lambda c: c.keys(),
    "list_federation_events": lambda c: c.federations.events(ID, newest_first=True),
    "stream_federation_events": lambda c: c.federations.follow(ID, after=3),
    "get_health": lambda c: c.health(),
    "get_readiness": lambda c: c.readiness(),
    "get_me": lambda c: c.me(),
    "get_metrics": lambda c: c.metrics(),
    "get_problem": lambda c: c.problem("not-found"),
    "create_federation": lambda c: c.federations.create("f", allocation="game"),
    "list_federations": lambda c: c.federations.list(),
    "get_federation": lambda c: c.federations.get(ID),
    "change_federation": lambda c: c.incentives.set("game", federation=ID),
    "list_periods": lambda c: c.incentives.periods(federation=ID),
    "preview_period": lambda c: c.incentives.preview(strategy="greedy", federation=ID),
    "list_ledger": lambda c: c.incentives.ledger(federation=ID),
    "list_own_ledger": lambda c: c.incentives.own_ledger(),
    "list_acts": lambda c: c.acts.list(federation=ID, after=3, about=ID, newest_first=True),
    "get_acts_head": lambda c: c.acts.head(federation=ID),
    "create_client": lambda c: c.clients.enrol("a", federation=ID, max_samples=3, resources={"seconds": 2.0}),
    "list_clients": lambda c: c.clients.list(federation=ID),
    "get_client": lambda c: c.clients.get(ID),
    "rotate_client_credential": ("clients", "rotate", ()),
    "remove_client": ("clients", "remove", ()),
    "create_credential": lambda c: c.credentials.create("viewer", federation=ID),
    "list_credentials": lambda c: c.credentials.list(federation=ID),
    "revoke_credential": lambda c: c.credentials.revoke(ID),
    "create_run": lambda c: c.runs.create(RUN_SPEC, federation=ID),
    "validate_run": lambda c: c.runs.validate(RUN_SPEC, federation=ID),
    "list_runs": lambda c: c.runs.list(federation=ID, status="running"),
    "get_run": lambda c: c.runs.get(ID),
    "join_run": ("runs", "join", ("a",)),
    "pause_run": ("runs", "pause", ()),
    "resume_run": ("runs", "resume", ()),
    "cancel_run": ("runs", "cancel", ()),
    "recover_run": ("runs", "recover", ("moon",)),
    "list_cohorts": ("runs", "cohorts", ()),
    "list_rounds": ("runs", "rounds", ()),
    "list_tasks": ("runs", "tasks", ()),
    "list_checkpoints": ("runs", "checkpoints", ()),
    "list_histories": ("runs", "history", ()),
    "list_kept_updates": ("runs", "kept_updates", ()),
    "list_events": ("runs", "events", ()),
    "stream_events": ("runs", "follow", ()),
    "get_cohort": lambda c: c.cohorts.get(ID),
    "list_members": ("cohorts", "members", ()),
    "get_checkpoint": lambda c: c.checkpoints.get(ID),
    "get_lineage": ("checkpoints", "lineage", ()),
    "download_model": ("checkpoints", "download", ("nowhere",)),
    "put_blob": lambda c: c.blobs.upload(__file__, federation=ID),
    "append_to_blob": lambda c: c.blobs.append(samples.DIGEST, b"abc", offset=0, length=9),
    "head_blob": lambda c: c.blobs.received(samples.DIGEST, federation=ID),
    "get_blob": lambda c: c.blobs.download(samples.DIGEST, "nowhere", federation=ID),
    "discover_erasure": lambda c: c.erasures.discovery(),
    "preview_erasure": lambda c: c.erasures.preview("b", federation=ID, recovery_rounds=2),
    "file_erasure": lambda c: c.erasures.file("b", federation=ID, needs_approval=True),
    "list_erasures": lambda c: c.erasures.list(
        federation=ID, status=["fenced"], subject="b", run=ID, due_before=samples.AT, awaiting_my_approval=True
    ),
    "count_erasures": lambda c: c.erasures.count(federation=ID, status="fenced"),
    "get_erasure": lambda c: c.erasures.get(ID),
    "approve_erasure": ("erasures", "approve", ("as asked",)),
    "extend_erasure": ("erasures", "extend", ("2027-01-31T00:00:00Z", "several runs are paused")),
    "add_note": ("erasures", "note", ("the letter is in folder 7",)),
    "list_notes": ("erasures", "notes", ()),
    "deny_erasure": ("erasures", "deny", ("litigation hold",)),
    "cancel_erasure": ("erasures", "cancel", ()),
    "retry_erasure": ("erasures", "retry", ()),
    "list_deliveries": ("erasures", "deliveries", ()),
    "list_erasure_events": ("erasures", "events", ()),
    "stream_erasure_events": ("erasures", "follow", ()),
    "get_certificate": ("erasures", "certificate", ()),
    "get_artefacts": ("erasures", "certificate", ()),
    "get_certificate_page": ("erasures", "certificate_page", ()),
    "get_opening": ("erasures", "opening", ()),
    "create_hand_over": ("erasures", "hand_over", ()),
    "list_hand_overs": ("erasures", "hand_overs", ()),
    "revoke_hand_over": lambda c: c.erasures.revoke_hand_over(ID),
    "open_hand_over": lambda c: c.erasures.open_hand_over(ID, "a-secret"),
    "begin_browser_session": lambda c: c.browser_session.begin("a-token"),
    "get_browser_session": lambda c: c.browser_session.get(),
    "end_browser_session": lambda c: c.browser_session.end(),
    "get_openid": lambda c: c.browser_session.openid(),
    "open_session": lambda c: c.work.open_session(SESSION),
    "claim_tasks": lambda c: c.work.claim(wait_s=1),
    "renew_lease": lambda c: c.work.renew_lease(ID, LEASE),
    "submit_result": lambda c: c.work.submit(ID, RESULT),
    "report_failure": lambda c: c.work.report_failure(ID, FAILURE),
    "get_exclusions": lambda c: c.work.exclusions(),
    "acknowledge_exclusions": lambda c: c.work.acknowledge_exclusions({"digest": samples.DIGEST}),
    "get_superseded_models": lambda c: c.work.superseded_models(),
    "confirm_dropped_models": lambda c: c.work.confirm_dropped_models(DROPPED),
}


class Recorder:
    """Answers what handles are made of; everything else is not found. Keeps the operations that were asked for."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.asked: list[str] = []

    def answer(self, request: httpx.Request, body: bytes) -> httpx.Response:
        path = unquote(request.url.path)
        (key,) = [key for key, address in ADDRESSES.items() if key[0] == request.method and address.fullmatch(path)]
        operation = OPERATIONS[key]
        self.asked.append(operation["operationId"])
        check(operation, request, body)
        if operation["operationId"] == "get_certificate" and self.wanted == "get_artefacts":
            return httpx.Response(200, content=b"{}")
        start = next((start for start in HANDLES if path.startswith(start)), None)
        if (
            request.method == "GET"
            and start is not None
            and path.count("/") == 3
            and operation["operationId"] != self.wanted
        ):
            return httpx.Response(200, json=HANDLES[start])
        return httpx.Response(404, json={"code": "not-found", "title": "nothing here"})

    def __call__(self, request: httpx.Request) -> httpx.Response:
        return self.answer(request, request.read())

    async def answer_async(self, request: httpx.Request) -> httpx.Response:
        return self.answer(request, await request.aread())


def check(operation: dict[str, Any], request: httpx.Request, body: bytes) -> None:
    """Everything that is sent is in the contract, and everything that it demands is sent."""
    described = operation.get("parameters", [])
    queries = {one["name"] for one in described if one["in"] == "query"}
    assert set(request.url.params) <= queries, operation["operationId"]
    for one in described:
        if one["in"] == "header" and one.get("required"):
            assert one["name"].lower() in request.headers, one["name"]
    wanted = operation.get("requestBody")
    if wanted is None:
        assert not body
        return
    media_type = request.headers["content-type"]
    assert media_type in wanted["content"], operation["operationId"]
    if media_type == "application/json":
        name = wanted["content"][media_type]["schema"]["$ref"].rpartition("/")[2]
        schema = {"$ref": f"#/components/schemas/{name}", "components": CONTRACT["components"]}
        jsonschema_rs.validator_for(schema).validate(json.loads(body))


def test_the_list_is_that_of_the_contract() -> None:
    assert CALLS.keys() == {operation["operationId"] for operation in OPERATIONS.values()}


@pytest.mark.parametrize("operation", sorted(CALLS))
def test_the_client_has_a_method_for(operation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    recorder, call = Recorder(operation), CALLS[operation]
    with Client("http://coordinator", "t", transport=httpx.MockTransport(recorder)) as client:
        try:
            if isinstance(call, tuple):
                group, method, arguments = call
                done = getattr(getattr(client, group).get(ID), method)(*arguments)
            else:
                done = call(client)
            if isinstance(done, Iterator):
                next(done)
        except LetheError:
            pass
    assert operation in recorder.asked


@pytest.mark.anyio
@pytest.mark.parametrize("operation", sorted(CALLS))
async def test_the_asynchronous_client_has_a_method_for(
    operation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    recorder, call = Recorder(operation), CALLS[operation]
    transport = httpx.MockTransport(recorder.answer_async)
    async with AsyncClient("http://coordinator", "t", transport=transport) as client:
        try:
            if isinstance(call, tuple):
                group, method, arguments = call
                done = getattr(await getattr(client, group).get(ID), method)(*arguments)
            else:
                done = call(client)
            if inspect.isawaitable(done):
                await done
            elif isinstance(done, AsyncIterator):
                await anext(done)
        except LetheError:
            pass
    assert operation in recorder.asked


def test_a_wish_has_every_field_of_a_request() -> None:
    beside = {"subjects", "federation_id"}
    assert set(Wish.__annotations__) == ErasurePreviewRequest.model_fields.keys() - beside
    assert set(Filing.__annotations__) | set(Wish.__annotations__) == ErasureCreate.model_fields.keys() - beside
