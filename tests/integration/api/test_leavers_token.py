"""What an erased client's token is still good for: its own request and certificate, for 90 days, and nothing else."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from coordinator.store import tables as t
from services.audit.certificate import verify_bytes
from services.wire.v1.erasure import LEAVER_READS_DAYS
from tests.integration.api.site import Actor, Site, blob, code_of, until, update

pytestmark = pytest.mark.anyio
REQUESTS = "/v1/erasure-requests"


async def filed(site: Site, name: str, *, until_status: str = "completed") -> str:
    body = {"subjects": [name], "federation_id": site.federation_id}
    request = await site.admin.post(REQUESTS, body, expect=202, headers={"Idempotency-Key": name})
    path = f"{REQUESTS}/{request['id']}"

    async def is_reached() -> bool:
        now: dict[str, Any] = await site.admin.get(path)
        return now["fenced_at"] is not None if until_status == "fenced" else now["status"] == until_status

    await until(is_reached, within_s=30)
    return path


async def ends_of(site: Site, client_id: str) -> Any:
    async with site.coordinator.database.read() as connection:
        own = t.credentials.c.client_id == UUID(client_id)
        return (await connection.execute(t.credentials.select().where(own))).one().revoked_at


async def everything_else(a: Actor, model: str, own: str, task: dict[str, Any]) -> dict[str, str]:
    """Codes of the answers to whatever a client can ask, but to read its own request."""
    digest, data = blob(update(3.0))
    body = {"lease_token": task["lease_token"], "update": own, "num_samples": 1}
    answers = {
        "session": await a.call("POST", "/v1/sessions", json={"agent_version": "x", "protocol": 1}),
        "claim": await a.call("POST", "/v1/tasks/claim"),
        "heartbeat": await a.call(
            "POST", f"/v1/tasks/{task['task_id']}/heartbeat", json={"lease_token": task["lease_token"]}
        ),
        "submit": await a.call("PUT", f"/v1/tasks/{task['task_id']}/result", json=body),
        "fail": await a.call(
            "POST",
            f"/v1/tasks/{task['task_id']}/failure",
            json={"lease_token": task["lease_token"], "retryable": False, "reason": "no"},
        ),
        "upload": await a.call("PUT", f"/v1/blobs/{digest}", content=data),
        "part": await a.call(
            "PATCH",
            f"/v1/blobs/{digest}",
            content=data[:10],
            headers={"Upload-Offset": "0", "Content-Type": "application/partial-upload"},
        ),
        "model": await a.call("GET", f"/v1/blobs/{model}"),
        "own update": await a.call("GET", f"/v1/blobs/{own}"),
        "exclusions": await a.call("GET", "/v1/exclusions"),
        "preview": await a.call("POST", f"{REQUESTS}:preview", json={"subjects": ["a"]}),
        "file": await a.call("POST", REQUESTS, json={"subjects": ["a"]}, headers={"Idempotency-Key": "again"}),
    }
    return {name: code_of(response) for name, response in answers.items()}


async def test_from_the_fence_on_a_leavers_token_only_reads_its_own_request_and_certificate(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    model = await site.upload_model()
    await site.start_run(training={"algorithm": "fedavg", "quorum": 2}, stop={"rounds": 100})
    (task,) = await a.claim()
    own = await a.put_blob(update(1.0))
    path = await filed(site, "a", until_status="fenced")  # b is away: it goes no further
    # At once, although the token was used a moment before.
    assert set((await everything_else(a, model, own, task)).values()) == {"client-erased"}
    assert (await a.get(path))["subjects"] == ["a"]
    assert code_of(await a.call("GET", f"{path}/certificate")) == "certificate-not-ready"
    assert code_of(await b.call("GET", path)) == "not-found"


async def test_after_its_erasure_a_leaver_fetches_its_certificate_with_its_own_token(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    path = await filed(site, "a")
    assert (await a.get(path))["status"] == "completed"
    assert [one["id"] for one in (await a.get(REQUESTS))["items"]] == [path.rpartition("/")[2]]
    assert (await a.call("GET", f"{path}/events", headers={"Accept": "application/json"})).status_code == 200
    certificate = await a.call("GET", f"{path}/certificate")
    verify_bytes(certificate.content, [site.coordinator.signing_keys.load().public_key()])
    listed = await a.call("GET", f"{path}/certificate/artefacts")
    leaves = [json.loads(line) for line in listed.text.splitlines()]
    (key,) = [one for one in leaves if one.get("kind") == "credential"]
    ends_at = await ends_of(site, a.client_id)
    assert key["disposition"] == "reduced"
    assert key["reason"] == f"it can only read its own request and certificate, until {ends_at:%Y-%m-%d}"
    async with site.coordinator.database.read() as connection:
        now = await site.coordinator.database.now(connection)
    assert timedelta(days=LEAVER_READS_DAYS - 1) < ends_at - now <= timedelta(days=LEAVER_READS_DAYS)
    refused = (await a.call("POST", "/v1/tasks/claim")).json()
    assert refused["code"] == "client-erased"
    assert path.rpartition("/")[2] in refused["detail"] and f"{ends_at:%Y-%m-%d}" in refused["detail"]
    assert code_of(await b.call("GET", f"{path}/certificate")) == "not-found"


async def test_after_ninety_days_or_when_revoked_a_leavers_token_is_worth_nothing(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    path = await filed(site, "a")
    async with site.coordinator.database.write() as connection:
        now = await site.coordinator.database.now(connection)
        own = t.credentials.c.client_id == UUID(a.client_id)
        await connection.execute(t.credentials.update().where(own).values(revoked_at=now - timedelta(seconds=1)))
    assert code_of(await a.call("GET", path)) == "unauthenticated"
    path = await filed(site, "b")
    await b.get(path)
    credentials = (await site.admin.get(f"/v1/federations/{site.federation_id}/credentials"))["items"]
    (own_id,) = [one["id"] for one in credentials if one.get("client_id") == b.client_id]
    revoked = await site.admin.call("DELETE", f"/v1/credentials/{own_id}")
    assert revoked.status_code in (200, 204), revoked.text
    assert code_of(await b.call("GET", path)) == "unauthenticated"
