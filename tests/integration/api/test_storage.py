"""What is swept and what stays, who may store how much, and what a removed client leaves behind."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from safetensors.numpy import save

from coordinator.runtime.sweeping import sweep_uploads
from coordinator.store import tables as t
from services.core import digests
from tests.integration.api.site import MODEL, Actor, Site, blob, code_of, opened, until, update

pytestmark = pytest.mark.anyio
JUDGED_ON: dict[str, Any] = {"x": np.ones((2, 4), np.float32), "y": np.zeros(2, np.int64)}
BIG = save({"x": np.zeros(100_000, dtype=np.float32)})
BIG_PATH = f"/v1/blobs/{digests.of_bytes(BIG)}"
WEIGHTS = {**MODEL, "layer.bias": np.ones(2, dtype=np.float32)}
"""Other than those that the site uploads as its operator."""
MLP = {"name": "mlp", "params": {"input_shape": [4], "num_classes": 2, "hidden": [3]}}


async def sweep(site: Site) -> int:
    """As it will be when every upload is a day old."""
    return await sweep_uploads(site.coordinator.database, site.coordinator.blobs, timedelta(0))


async def is_stored(site: Site, digest: str) -> bool:
    return await site.coordinator.blobs.stat(UUID(site.federation_id), digest) is not None


async def cut_short(actor: Actor, data: bytes, size: int) -> None:
    headers = {"Content-Type": "application/partial-upload", "Upload-Offset": "0", "Upload-Length": str(len(data))}
    path = f"/v1/blobs/{digests.of_bytes(data)}"
    assert (await actor.call("PATCH", path, content=data[:size], headers=headers)).status_code == 204


async def test_the_sweep_spares_what_an_operator_uploaded_after_a_client(site: Site) -> None:
    (a,) = await site.enrol("a")
    small = await a.put_blob(MODEL)
    assert (await a.call("PUT", BIG_PATH, content=BIG)).status_code == 201
    lost = await a.put_blob(update(3.0))
    assert await site.upload_model() == small
    options: dict[str, Any] = {"content": BIG, "params": {"federation_id": site.federation_id}}
    assert (await site.admin.call("PUT", BIG_PATH, **options)).status_code == 201
    assert await sweep(site) == 1
    assert [await is_stored(site, d) for d in (small, digests.of_bytes(BIG), lost)] == [True, True, False]
    await site.start_run(init=small)
    assert (await a.train(1.0))["weights"] == small


async def test_the_sweep_spares_the_weights_and_the_validation_set_that_a_run_names(site: Site) -> None:
    (a,) = await site.enrol("a")
    init = await a.put_blob(WEIGHTS)
    data, bystander = await a.put_blob(JUDGED_ON), await a.put_blob(update(9.0))
    await site.start_run("one", init=init)
    await site.start_run("two", model=MLP, init=None, validation={"data": data})
    assert await sweep(site) == 1
    assert [await is_stored(site, digest) for digest in (init, data, bystander)] == [True, True, False]


async def test_an_erasure_spares_what_a_run_names_though_the_leaver_uploaded_it(site: Site) -> None:
    leaver, stayer = await site.enrol("leaver", "stayer")
    lost, own = await leaver.put_blob(WEIGHTS), await leaver.put_blob(update(9.0))
    data = await leaver.put_blob(JUDGED_ON)
    await site.start_run("one", model=MLP, init=None, validation={"data": data}, clients=["stayer"])
    officer = await site.staff("compliance")
    options: dict[str, Any] = {"expect": 202, "headers": {"Idempotency-Key": "e"}}
    filed = await officer.post("/v1/erasure-requests", {"subjects": ["leaver"]}, **options)

    async def is_completed() -> bool:
        found = await officer.get(f"/v1/erasure-requests/{filed['id']}")
        return found["status"] == "completed"  # type: ignore[no-any-return]

    await until(is_completed, 30)
    assert [await is_stored(site, digest) for digest in (lost, data, own)] == [False, True, False]
    assert await stayer.put_blob(WEIGHTS) == lost


async def test_removing_a_client_frees_what_nobody_else_needs(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    init, own, of_b = await a.put_blob(WEIGHTS), await a.put_blob(update(1.0)), await b.put_blob(update(2.0))
    await site.start_run(init=init, clients=["b"])
    await cut_short(a, BIG, 1000)
    await cut_short(b, BIG, 2000)
    assert (await site.admin.call("DELETE", f"/v1/clients/{a.client_id}")).status_code == 204
    assert [await is_stored(site, digest) for digest in (init, own, of_b)] == [True, False, True]
    assert [part.num_bytes for part in await site.coordinator.blobs.parts()] == [2000]
    async with site.coordinator.database.read() as connection:
        recorded = {row.digest for row in await connection.execute(t.blobs.select())}
    assert recorded >= {init, of_b} and own not in recorded


async def test_a_client_over_its_quota_is_refused_and_others_go_on(tmp_path: Path, database_url: str | None) -> None:
    async with opened(tmp_path / "home", database_url, client_quota_bytes=len(BIG) + 1000) as site:
        a, b = await site.enrol("a", "b")
        await cut_short(a, BIG, 2000)
        other = save({"x": np.ones(100_000, dtype=np.float32)})
        path = f"/v1/blobs/{digests.of_bytes(other)}"
        refused = await a.call("PUT", path, content=other)
        assert (refused.status_code, code_of(refused)) == (413, "quota-exceeded")
        assert "LETHE_CLIENT_QUOTA_BYTES" in refused.json()["detail"]
        assert (await b.call("PUT", path, content=other)).status_code == 201
        options: dict[str, Any] = {"content": other, "params": {"federation_id": site.federation_id}}
        assert (await site.admin.call("PUT", path, **options)).status_code == 201


async def test_a_federation_over_its_quota_has_room_again_when_a_client_is_removed(
    tmp_path: Path, database_url: str | None
) -> None:
    async with opened(tmp_path / "home", database_url, federation_quota_bytes=len(BIG) + 1000) as site:
        a, b = await site.enrol("a", "b")
        elsewhere = await site.federation("elsewhere")
        (c,) = await site.enrol("c", federation_id=elsewhere)
        assert (await a.call("PUT", BIG_PATH, content=BIG)).status_code == 201
        digest, data = blob({"y": np.zeros(1000, np.float32)})
        refused = await b.call("PUT", f"/v1/blobs/{digest}", content=data)
        assert (refused.status_code, code_of(refused)) == (413, "quota-exceeded")
        assert (await c.call("PUT", f"/v1/blobs/{digest}", content=data)).status_code == 201
        assert (await site.admin.call("DELETE", f"/v1/clients/{a.client_id}")).status_code == 204

        async def has_room() -> bool:
            return (await b.call("PUT", f"/v1/blobs/{digest}", content=data)).status_code == 201

        await until(has_room)


async def test_a_run_whose_validation_set_is_missing_fails_and_says_which_and_what_to_do(site: Site) -> None:
    await site.enrol("a")
    data = await site.admin.put_blob(JUDGED_ON, params={"federation_id": site.federation_id})
    await site.coordinator.blobs.delete(UUID(site.federation_id), data)
    run = await site.start_run(model=MLP, init=None, validation={"data": data})

    async def reason() -> str:
        found = await site.admin.get(f"/v1/runs/{run['id']}")
        return found["reason"] if found["status"] == "failed" else ""

    async def has_failed() -> bool:
        return bool(await reason())

    await until(has_failed, within_s=60)
    assert data in await reason() and "upload it again" in await reason()
