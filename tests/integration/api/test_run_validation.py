"""Whether a run could be started is said before it is, over HTTP and by `runs create --dry-run`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.wire.v1.runs import StopRule
from tests.integration.api.site import Actor, Site, code_of

pytestmark = pytest.mark.anyio
MLP = {"name": "mlp", "params": {"input_shape": [4], "num_classes": 2, "hidden": [3]}}
ELSEWHERE = "sha256:" + "7" * 64
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "more knot clusters than clients": {"topology": {"kind": "clusters", "num_clusters": 4}},
    "more spectral clusters than clients": {
        "topology": {"kind": "clusters", "num_clusters": 4, "assignment": "spectral"}
    },
    "more random clusters than clients": {"topology": {"kind": "clusters", "num_clusters": 4, "assignment": "random"}},
    "clusters that are too small": {"topology": {"kind": "clusters", "num_clusters": 2, "max_size": 1}},
    "clusters that are too large": {"topology": {"kind": "clusters", "num_clusters": 2, "min_size": 2}},
    "trees in too many clusters": {"topology": {"kind": "clusters", "num_clusters": 4, "inside": {"kind": "tree"}}},
    "more clients per round than there are": {"training": {"algorithm": "fedavg", "clients_per_round": 4}},
    "a quorum above the number of clients": {"training": {"algorithm": "fedavg", "quorum": 4}},
    "more clients for fats than there are": {"training": {"algorithm": "fats", "clients_per_round": 4}},
    "a client that is not enrolled": {"clients": ["a", "nobody"]},
    "initial weights that are not stored": {"init": ELSEWHERE},
    "validation data that is not stored": {"validation": {"data": ELSEWHERE}},
    "a model that nobody can build": {"model": {"name": "mlp", "params": {"num_classes": 2}}},
}


async def send(by: Actor, path: str, site: Site, **changes: Any) -> Any:
    spec = {"name": "tiny", "model": MLP, **changes}
    headers = {"Idempotency-Key": "once"} if path == "/v1/runs" else {}
    return await by.call("POST", path, json={"federation_id": site.federation_id, "spec": spec}, headers=headers)


async def test_runs_that_cannot_be_carried_out_are_refused_at_once(site: Site) -> None:
    for name in ("a", "b", "c"):
        await site.enrol(name)
    for what, changes in IMPOSSIBLE.items():
        for path in ("/v1/runs:validate", "/v1/runs"):
            response = await send(site.admin, path, site, **changes)
            assert (response.status_code, code_of(response)) == (422, "invalid-run"), (what, path, response.text)
    assert (await site.admin.get("/v1/runs"))["items"] == []


async def test_stored_files_that_do_not_fit_are_refused_at_once(site: Site) -> None:
    await site.enrol("a")
    weights = await site.admin.put_blob({"w": np.zeros(7, np.float32)}, params={"federation_id": site.federation_id})
    for path in ("/v1/runs:validate", "/v1/runs"):
        response = await send(site.admin, path, site, init=weights)
        assert code_of(response) == "invalid-run" and "7 parameters and model mlp" in response.text
        response = await send(site.admin, path, site, validation={"data": weights})
        assert code_of(response) == "invalid-run" and "needs x (samples first) and integer y" in response.text


async def test_validation_says_what_would_begin_and_changes_nothing(site: Site) -> None:
    for name in ("a", "b", "c"):
        await site.enrol(name)
    spec: dict[str, Any] = {"name": "tiny", "model": MLP, "topology": {"kind": "tree"}}
    body: dict[str, Any] = {"federation_id": site.federation_id, "spec": spec}
    found = await site.admin.post("/v1/runs:validate", body, expect=200)
    assert found == {"num_clients": 3, "num_cohorts": 5, "rounds_planned": StopRule().rounds}
    named = {**body, "spec": {**spec, "init": ELSEWHERE}, "to_upload": [ELSEWHERE]}
    assert await site.admin.post("/v1/runs:validate", named, expect=200) == found
    assert (await site.admin.get("/v1/runs"))["items"] == []
    viewer = await site.staff("viewer")
    assert (await viewer.call("POST", "/v1/runs:validate", json=body)).status_code == 403
