"""Agents of version 0.1 go on with this coordinator: they name no task on uploads, and say nothing of their caches."""

from __future__ import annotations

import pytest

from services.core import digests
from tests.integration.api.site import Site, blob, update

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("is_resumed", [False, True], ids=["whole", "resumed"])
async def test_an_agent_of_version_0_1_claims_downloads_uploads_and_submits(site: Site, is_resumed: bool) -> None:
    (a,) = await site.enrol("a")
    run = await site.start_run(stop={"rounds": 1})
    session = await a.call("POST", "/v1/sessions", json={"agent_version": "0.1.0", "protocol": 1})
    assert session.status_code == 200, session.text
    (task,) = await a.claim()
    got = await a.call("GET", f"/v1/blobs/{task['weights']}", headers={"Accept-Encoding": "identity"})
    assert got.status_code == 200 and digests.of_bytes(got.content) == task["weights"]
    digest, data = blob(update(1.0))
    path = f"/v1/blobs/{digest}"
    if is_resumed:
        part = {"Content-Type": "application/partial-upload", "Upload-Length": str(len(data))}
        begun = await a.call("PATCH", path, content=data[:100], headers={**part, "Upload-Offset": "0"})
        assert begun.status_code == 204, begun.text
        head = await a.call("HEAD", path)
        assert head.headers["upload-offset"] == "100"
        sent = await a.call("PATCH", path, content=data[100:], headers={**part, "Upload-Offset": "100"})
    else:
        assert (await a.call("HEAD", path)).status_code == 404
        sent = await a.call("PUT", path, content=data)
    assert sent.status_code == 201, sent.text
    beat = {"lease_token": task["lease_token"], "progress": 0.5}
    assert (await a.call("POST", f"/v1/tasks/{task['task_id']}/heartbeat", json=beat)).status_code == 200
    reply = await a.submit(task, digest)
    assert reply.status_code == 200, reply.text
    assert (await a.submit(task, digest)).status_code == 200  # its answer was lost
    assert (await site.admin.get(f"/v1/runs/{run['id']}"))["status"] in ("running", "completed")
