"""Wrong bytes, wrong figures, wrong senders: a documented 4xx each, and the run goes on."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from services.core import digests
from tests.integration.api.site import MODEL, Actor, Site, Tensors, blob, code_of, update

pytestmark = pytest.mark.anyio


async def put(actor: Actor, data: bytes, digest: str | None = None) -> Any:
    return await actor.call("PUT", f"/v1/blobs/{digest or digests.of_bytes(data)}", content=data)


GOOD = save({"x": np.zeros(4, dtype=np.float32)})


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            b"\x80\x04\x95\x14\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01x\x94]\x94G?\xf0\x00\x00\x00\x00\x00\x00as.",
            id="pickle",
        ),
        pytest.param(b"PK\x03\x04" + b"\0" * 60, id="torch-zip"),
        pytest.param(GOOD[:-3], id="truncated"),
        pytest.param(GOOD + b"\0", id="longer"),
        pytest.param(b"", id="empty"),
        pytest.param(b"hello, this is no tensor at all", id="foreign"),
        pytest.param((2**40).to_bytes(8, "little") + b"{}", id="absurd-header"),
        pytest.param(GOOD.replace(b'"F32"', b'"F99"'), id="unknown-dtype"),
        pytest.param(GOOD.replace(b"[4]", b"[9]"), id="shape-without-data"),
    ],
)
async def test_bytes_that_are_not_safetensors_are_refused(small_site: Site, data: bytes) -> None:
    (a,) = await small_site.holders("a")
    response = await put(a, data)
    assert (response.status_code, code_of(response)) == (415, "not-safetensors")
    assert (await a.call("HEAD", f"/v1/blobs/{digests.of_bytes(data)}")).status_code == 404


async def test_bytes_with_another_digest_are_refused(small_site: Site) -> None:
    (a,) = await small_site.holders("a")
    response = await put(a, GOOD, "sha256:" + "0" * 64)
    assert (response.status_code, code_of(response)) == (422, "digest-mismatch")
    assert hashlib.sha256(GOOD).hexdigest() in response.json()["detail"]


async def test_an_upload_larger_than_allowed_is_refused_before_it_is_read(small_site: Site) -> None:
    (a,) = await small_site.holders("a")
    headers = {"Content-Length": str(2**60)}
    response = await a.call("PUT", f"/v1/blobs/{blob(MODEL)[0]}", content=b"x", headers=headers)
    assert (response.status_code, code_of(response)) == (413, "too-large")


async def test_an_upload_of_unknown_length_is_refused(small_site: Site) -> None:
    (a,) = await small_site.holders("a")

    async def chunks() -> Any:
        yield GOOD

    response = await a.call("PUT", f"/v1/blobs/{digests.of_bytes(GOOD)}", content=chunks())
    assert (response.status_code, code_of(response)) == (411, "length-required")


@pytest.mark.parametrize("path", ["/v1/blobs/sha256:xyz", "/v1/blobs/..%2F..%2Fetc", "/v1/runs/1", "/v1/clients/a"])
async def test_a_malformed_address_is_refused(small_site: Site, path: str) -> None:
    response = await small_site.admin.call("GET", path)
    assert code_of(response) in ("invalid-request", "not-found")


WRONG_UPDATES: dict[str, tuple[Tensors, int, str]] = {
    "shape": ({**update(1.0), "layer.bias": np.zeros(3, dtype=np.float32)}, 422, "wrong-layout"),
    "dtype": ({**update(1.0), "layer.bias": np.zeros(2, dtype=np.float64)}, 422, "wrong-layout"),
    "missing": ({"layer.bias": np.zeros(2, dtype=np.float32)}, 422, "wrong-layout"),
    "integers": (MODEL, 422, "wrong-layout"),
    "nan": (update(float("nan")), 422, "not-finite"),
    "inf": (update(float("inf")), 422, "not-finite"),
}


async def test_an_update_that_does_not_fit_is_refused_and_the_run_goes_on(site: Site) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run()
    (task,) = await a.claim()
    for name, (tensors, status, code) in WRONG_UPDATES.items():
        response = await a.submit(task, await a.put_blob(tensors))
        assert (response.status_code, code_of(response)) == (status, code), name
    missing = await a.submit(task, "sha256:" + "1" * 64)
    assert (missing.status_code, code_of(missing)) == (409, "blob-missing")
    assert (await a.submit(task, await a.put_blob(update(1.0)))).status_code == 200
    assert (await site.admin.get(f"/v1/runs/{run['id']}"))["status"] in ("running", "completed")
    metrics = (await site.http.get("/metrics")).text
    assert 'lethe_rejections_total{code="wrong-layout"} 4.0' in metrics
    assert 'lethe_rejections_total{code="not-finite"} 2.0' in metrics


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_samples": 0}, "invalid-request"),
        ({"num_samples": -5}, "invalid-request"),
        ({"num_samples": 10**12}, "invalid-request"),
        ({"num_samples": 1.5}, "invalid-request"),
        ({"num_samples": "10"}, "invalid-request"),
        ({"metrics": {"loss": "low"}}, "invalid-request"),
        ({"metrics": {"x" * 65: 1.0}}, "invalid-request"),
        ({"metrics": {f"m{i}": 1.0 for i in range(33)}}, "invalid-request"),
        ({"metrics": {"accuracy": 1.5}}, "invalid-result"),
        ({"update": "sha256:short"}, "invalid-request"),
        ({"update": None}, "invalid-result"),
        ({"unknown": 1}, "invalid-request"),
    ],
)
async def test_impossible_figures_are_refused(small_site: Site, changes: dict[str, Any], code: str) -> None:
    (a,) = await small_site.enrol("a")
    await small_site.start_run()
    (task,) = await a.claim()
    good = {"lease_token": task["lease_token"], "update": await a.put_blob(update(1.0)), "num_samples": 10}
    path = f"/v1/tasks/{task['task_id']}/result"
    response = await a.call("PUT", path, json={**good, **changes})
    assert (response.status_code, code_of(response)) == (422, code)
    assert (await a.call("PUT", path, json=good)).status_code == 200


async def test_another_clients_task_does_not_exist(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    await site.start_run()
    (task,) = await a.claim()
    path = f"/v1/tasks/{task['task_id']}"
    assert code_of(await b.submit(task, blob(update(1.0))[0])) == "not-found"
    heartbeat = {"lease_token": task["lease_token"]}
    assert code_of(await b.call("POST", f"{path}/heartbeat", json=heartbeat)) == "not-found"
    failure = {**heartbeat, "retryable": True, "reason": "mischief"}
    assert code_of(await b.call("POST", f"{path}/failure", json=failure)) == "not-found"
    assert (await a.call("POST", f"{path}/heartbeat", json=heartbeat)).json()["directive"] == "continue"


async def test_a_stale_lease_is_refused_after_the_task_was_handed_out_again(site: Site) -> None:
    (a,) = await site.enrol("a")
    await site.start_run()
    (old,) = await a.claim()
    await a.open_session()
    (new,) = await a.claim()
    assert (new["task_id"], new["attempt"]) == (old["task_id"], 2)
    digest = await a.put_blob(update(1.0))
    assert code_of(await a.submit(old, digest)) == "lease-lost"
    heartbeat = {"lease_token": old["lease_token"]}
    assert code_of(await a.call("POST", f"/v1/tasks/{old['task_id']}/heartbeat", json=heartbeat)) == "lease-lost"
    assert (await a.submit(new, digest)).status_code == 200


async def test_a_result_is_counted_once_however_often_it_is_sent(site: Site) -> None:
    a, _ = await site.enrol("a", "b")
    run = await site.start_run()
    (task,) = await a.claim()
    digest = await a.put_blob(update(1.0))
    answers = [await a.submit(task, digest) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["update_id"] for answer in answers}) == 1
    assert code_of(await a.submit(task, blob(update(2.0))[0])) == "already-submitted"
    (round,) = (await site.admin.get(f"/v1/runs/{run['id']}/rounds"))["items"]
    assert round["num_received"] == 1


async def test_work_for_a_cancelled_run_is_refused(site: Site) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run()
    (task,) = await a.claim()
    digest = await a.put_blob(update(1.0))
    await site.admin.post(f"/v1/runs/{run['id']}/cancel", expect=200)
    response = await a.submit(task, digest)
    assert (response.status_code, code_of(response)) == (409, "round-closed")


@pytest.mark.parametrize(
    ("body", "code", "hint"),
    [
        ({"spec": {"name": "x", "model": {"name": "transformer"}}}, "invalid-run", "mlp, lenet5, cnn, vgg16"),
        ({"spec": {"name": "x", "model": {"name": "mlp"}}}, "invalid-run", "input_shape"),
        ({"spec": {"name": "x", "model": {"name": "custom"}}}, "invalid-request", "init"),
        ({"spec": {"name": "Not A Name", "model": {"name": "mlp"}}}, "invalid-request", "spec.name"),
        ({"spec": {"name": "x"}}, "invalid-request", "spec.model"),
        ({"spec": {"name": "x", "model": {"name": "mlp"}, "epochs": 3}}, "invalid-request", "epochs"),
        (
            {"spec": {"name": "x", "model": {"name": "mlp"}, "training": {"algorithm": "magic"}}},
            "invalid-request",
            "fedbuff",
        ),
        ({"spec": {"name": "x", "model": {"name": "mlp"}, "stop": {"rounds": 0}}}, "invalid-request", "rounds"),
        ({"spec": {"name": "x", "model": {"name": "mlp"}, "seed": 2**70}}, "invalid-request", "seed"),
        ([], "invalid-request", "body"),
        ("text", "invalid-request", "body"),
        (None, "invalid-request", "body"),
    ],
)
async def test_a_malformed_run_is_refused(small_site: Site, body: Any, code: str, hint: str) -> None:
    await small_site.enrol("a")
    if isinstance(body, dict):
        body = {"federation_id": small_site.federation_id, **body}
    response = await small_site.admin.call("POST", "/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert (response.status_code, code_of(response)) == (422, code)
    assert hint in response.text
    assert (await small_site.admin.get("/v1/runs"))["items"] == []


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"clients": ["a", "stranger"]}, "stranger"),
        ({"training": {"algorithm": "fedavg", "clients_per_round": 5}}, "clients_per_round"),
        ({"training": {"algorithm": "fedavg", "quorum": 5}}, "quorum"),
        ({"init": "sha256:" + "0" * 64}, "init"),
        (
            {"model": {"name": "mlp", "params": {"input_shape": [2**16] * 4, "num_classes": 9}}, "init": None},
            "parameters",
        ),
    ],
)
async def test_a_run_that_cannot_be_carried_out_is_refused(small_site: Site, changes: Any, hint: str) -> None:
    await small_site.enrol("a")
    spec = {"name": "tiny", "model": {"name": "custom"}, "init": await small_site.upload_model(), **changes}
    body = {"federation_id": small_site.federation_id, "spec": spec}
    response = await small_site.admin.call("POST", "/v1/runs", json=body, headers={"Idempotency-Key": "k"})
    assert (response.status_code, code_of(response)) == (422, "invalid-run")
    assert hint in response.json()["detail"]


async def test_a_run_needs_clients(small_site: Site) -> None:
    response = await small_site.admin.call(
        "POST",
        "/v1/runs",
        json={
            "federation_id": small_site.federation_id,
            "spec": {"name": "x", "model": {"name": "custom"}, "init": await small_site.upload_model()},
        },
        headers={"Idempotency-Key": "k"},
    )
    assert code_of(response) == "invalid-run"


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"{", "application/json", 422, "invalid-request"),
        (b'{"name": NaN}', "application/json", 422, "invalid-request"),
        (b'{"name": "\\ud800"}', "application/json", 422, "invalid-request"),
        (b'{"name": "\\u0000"}', "application/json", 422, "invalid-request"),
        (b"[" * 100_000, "application/json", 422, "invalid-request"),
        (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported-media-type"),
        (b'{"name": "x"}', "text/plain", 415, "unsupported-media-type"),
        (b" " * (2**20 + 1), "application/json", 413, "too-large"),
    ],
)
async def test_a_body_that_is_not_small_json_is_refused(
    small_site: Site, content: bytes, media_type: str, status: int, code: str
) -> None:
    headers = {"Content-Type": media_type}
    response = await small_site.admin.call("POST", "/v1/federations", content=content, headers=headers)
    assert (response.status_code, code_of(response)) == (status, code)


async def test_a_refusal_does_not_repeat_what_was_sent(small_site: Site) -> None:
    secret = "a-patients-name"
    response = await small_site.admin.call("POST", "/v1/federations", json={"name": [secret]})
    assert code_of(response) == "invalid-request"
    assert secret not in response.text
    assert response.json()["errors"][0]["loc"] == ["body", "name"]


async def test_an_agent_of_an_older_protocol_is_told_to_upgrade(
    small_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.api.work.PROTOCOL", 2)
    (a,) = await small_site.enrol("a")
    response = await a.call("POST", "/v1/sessions", json={"agent_version": "0.1", "protocol": 1})
    assert (response.status_code, code_of(response)) == (426, "protocol-too-old")
