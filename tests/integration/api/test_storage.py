"""What is swept and what stays, who may store how much, and what a removed client leaves behind."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import sqlalchemy as sa
from safetensors.numpy import save

from coordinator.engine.entities import Facts
from coordinator.runtime.storage import name_of
from coordinator.runtime.sweeping import sweep_uploads
from coordinator.store import blobs, loading_blobs, read_permissions
from coordinator.store import tables as t
from coordinator.store.warm import cold
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
    return await sweep_uploads(site.coordinator.database, site.coordinator.storage, timedelta(0))


async def is_stored(site: Site, digest: str) -> bool:
    """Whether anybody's blob with these bytes is recorded and there."""
    federation_id = UUID(site.federation_id)
    found = (await site.coordinator.storage.find(federation_id, [digest])).get(digest)
    return found is not None and bool(await site.coordinator.blobs.size(federation_id, name_of(found)))


async def num_objects(site: Site) -> int:
    return len([one async for one in site.coordinator.blobs.list()])


async def by_operator(site: Site, tensors: Any) -> str:
    return await site.admin.put_blob(tensors, params={"federation_id": site.federation_id})


async def cut_short(actor: Actor, data: bytes, size: int) -> None:
    headers = {"Content-Type": "application/partial-upload", "Upload-Offset": "0", "Upload-Length": str(len(data))}
    path = f"/v1/blobs/{digests.of_bytes(data)}"
    assert (await actor.call("PATCH", path, content=data[:size], headers=headers)).status_code == 204


async def test_the_sweep_spares_what_an_operator_uploaded_before_a_client(site: Site) -> None:
    (a,) = await site.holders("a")
    init, data = await by_operator(site, WEIGHTS), await by_operator(site, JUDGED_ON)
    before = await num_objects(site)
    for tensors in (WEIGHTS, JUDGED_ON, update(3.0)):
        await a.put_blob(tensors)
    assert await num_objects(site) == before + 3, "equal bytes of two origins are two blobs"
    assert await sweep(site) == 3
    assert [await is_stored(site, digest) for digest in (init, data)] == [True, True]
    assert not await is_stored(site, blob(update(3.0))[0])
    await site.start_run("named", init=init, clients=["a"])
    await site.start_run("judged", model=MLP, init=None, validation={"data": data}, clients=["a"])
    assert await sweep(site) == 0
    assert init in {task["weights"] for _ in range(2) for task in await a.claim()}


async def test_the_sweep_takes_an_upload_that_was_begun_and_one_that_was_never_submitted(site: Site) -> None:
    a, b = await site.holders("a", "b")
    before = await num_objects(site)
    await cut_short(a, BIG, 1000)
    lost = await a.put_blob(update(1.0))
    assert await b.claim(0) == []
    assert await num_objects(site) == before + 2
    assert await sweep(site) == 2
    assert await num_objects(site) == before and not await is_stored(site, lost)
    assert (await a.call("HEAD", BIG_PATH)).status_code == 404


async def test_an_operators_file_is_nobodys_update(site: Site) -> None:
    """What a client sent may have to be forgotten: nobody makes it an operator's, or begins a run with it."""
    (a,) = await site.holders("a")
    sent, data = blob(WEIGHTS)
    await a.put_blob(WEIGHTS)
    assert (await a.call("PUT", BIG_PATH, content=BIG)).status_code == 201
    before = await num_objects(site)
    for content in (data, BIG):
        options: dict[str, Any] = {"content": content, "params": {"federation_id": site.federation_id}}
        refused = await site.admin.call("PUT", f"/v1/blobs/{digests.of_bytes(content)}", **options)
        assert (refused.status_code, code_of(refused)) == (409, "anothers-bytes")
    assert await num_objects(site) == before
    spec = {"name": "tiny", "model": {"name": "custom"}, "init": sent, "stop": {"rounds": 1}}
    body = {"federation_id": site.federation_id, "spec": spec}
    refused = await site.admin.call("POST", "/v1/runs", json=body, headers={"Idempotency-Key": "x"})
    assert refused.status_code in (409, 422), refused.text
    assert "operator" in refused.json()["detail"] or "upload" in refused.json()["detail"]


async def test_removing_a_client_frees_what_nobody_else_needs(site: Site) -> None:
    a, b = await site.holders("a", "b")
    init = await by_operator(site, WEIGHTS)
    before = await num_objects(site)
    for actor in (a, b):
        await actor.put_blob(WEIGHTS)
        await cut_short(actor, BIG, 2000)
    own, of_b = await a.put_blob(update(1.0)), await b.put_blob(update(2.0))
    assert (await site.admin.call("DELETE", f"/v1/clients/{a.client_id}")).status_code == 204
    assert [await is_stored(site, digest) for digest in (init, own, of_b)] == [True, False, True]
    assert await num_objects(site) == before + 3
    async with site.coordinator.database.read() as connection:
        owners = {row.client_id for row in await connection.execute(t.blobs.select())}
    assert owners == {None, UUID(b.client_id)}


async def test_a_client_over_its_quota_is_refused_and_others_go_on(tmp_path: Path, database_url: str | None) -> None:
    async with opened(tmp_path / "home", database_url, client_quota_bytes=len(BIG) + 1000) as site:
        a, b = await site.holders("a", "b")
        await cut_short(a, BIG, 2000)
        other = save({"x": np.ones(100_000, dtype=np.float32)})
        path = f"/v1/blobs/{digests.of_bytes(other)}"
        refused = await a.call("PUT", path, content=other)
        assert (refused.status_code, code_of(refused)) == (413, "quota-exceeded")
        assert "LETHE_CLIENT_QUOTA_BYTES" in refused.json()["detail"]
        assert (await b.call("PUT", path, content=other)).status_code == 201


async def test_a_federation_over_its_quota_has_room_again_when_a_client_is_removed(
    tmp_path: Path, database_url: str | None
) -> None:
    async with opened(tmp_path / "home", database_url, federation_quota_bytes=len(BIG) + 1000) as site:
        a, b = await site.holders("a", "b")
        elsewhere = await site.federation("elsewhere")
        (c,) = await site.holders("c", federation_id=elsewhere)
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
    data = await by_operator(site, JUDGED_ON)
    found = await site.coordinator.storage.find(UUID(site.federation_id), [data])
    await site.coordinator.blobs.delete(UUID(site.federation_id), name_of(found[data]))
    run = await site.start_run(model=MLP, init=None, validation={"data": data})

    async def reason() -> str:
        found = await site.admin.get(f"/v1/runs/{run['id']}")
        return found["reason"] if found["status"] == "failed" else ""

    async def has_failed() -> bool:
        return bool(await reason())

    await until(has_failed, within_s=60)
    assert data in await reason() and "upload it again" in await reason()


async def test_of_equal_bytes_one_that_can_be_read_is_read(site: Site) -> None:
    """Also if the newest of them lost its key, or its bytes; only when none is left, what is missing is said."""
    (a,) = await site.holders("a")
    digest = await by_operator(site, WEIGHTS)
    await a.put_blob(WEIGHTS)
    path, federation = f"/v1/blobs/{digest}", {"federation_id": site.federation_id}
    async with site.coordinator.database.read() as connection:
        newest, oldest = (await blobs.stored(connection, UUID(site.federation_id), [digest]))[digest]
    assert (newest.origin, oldest.origin) == ("task", "operator")
    keys = site.coordinator.settings.evidence_path / "keys"
    key = keys / str(newest.client_key_name)
    key.rename(keys / "away")
    assert (await site.coordinator.storage.find(UUID(site.federation_id), [digest]))[digest].id == oldest.id
    assert (await site.admin.call("GET", path, params=federation)).content == blob(WEIGHTS)[1]
    (keys / "away").rename(key)
    assert (await site.coordinator.storage.find(UUID(site.federation_id), [digest]))[digest].id == newest.id
    await site.coordinator.blobs.delete(UUID(site.federation_id), name_of(newest))
    assert (await site.admin.call("GET", path, params=federation)).content == blob(WEIGHTS)[1]
    (keys / str(oldest.key_name)).rename(keys / "away")
    left = await site.admin.call("GET", path, params=federation)
    assert left.status_code in (404, 503) and code_of(left) in ("not-found", "key-missing")


async def test_of_very_many_with_equal_bytes_few_are_looked_at(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cohorts of a run begin with the same model. When none of the newest can be read, an older one is."""
    names = [f"client-{number:02}" for number in range(blobs.NEWEST + 3)]
    actors = await site.enrol(*names)
    await site.start_run(model=MLP, init=None, topology={"kind": "isolated"})
    owner, storage = UUID(site.federation_id), site.coordinator.storage

    async def all_have_tasks() -> bool:
        async with site.coordinator.database.read() as connection:
            return (await connection.execute(sa.select(sa.func.count()).select_from(t.tasks))).scalar() == len(names)

    await until(all_have_tasks, within_s=60)
    read = list[Facts]()

    def noted(*values: Any) -> Facts:
        read.append(Facts(*values))
        return read[-1]

    monkeypatch.setattr(loading_blobs, "Facts", noted)
    (task,) = await actors[0].claim()
    assert len(read) == 1
    wanted = read_permissions.WantedBytes(owner, task["weights"], UUID(actors[0].client_id))
    async with site.coordinator.database.read() as connection:
        found = (await blobs.stored(connection, owner, [task["weights"]]))[task["weights"]]
        every = (await blobs.stored(connection, owner, [task["weights"]], most=100))[task["weights"]]
        handed_out = (await read_permissions.for_clients(connection, [wanted]))[wanted].blobs
    assert len(every) == len(names) and found == every[: blobs.NEWEST] == list(handed_out)
    for one in found:
        await site.coordinator.blobs.delete(owner, name_of(one))
    assert (await storage.find(owner, [task["weights"]]))[task["weights"]].id == every[blobs.NEWEST].id
    got = await actors[0].call("GET", f"/v1/blobs/{task['weights']}")
    assert got.status_code == 200 and digests.of_bytes(got.content) == task["weights"]


async def test_what_is_submitted_while_the_sweep_looks_is_spared(site: Site) -> None:
    """A submission that has begun, and is not committed when the sweep looks for what was never submitted."""
    if site.coordinator.database.is_sqlite:
        pytest.skip("SQLite has one transaction at a time")
    a, _ = await site.enrol("a", "b")
    await site.start_run("waits for b", clients=["a", "b"])
    await a.train(1.0)
    digest, _ = blob(update(1.0))
    own = t.updates.c.digest == digest
    async with site.coordinator.database.write() as connection:
        await connection.execute(cold(t.updates.update().where(own).values(digest=digests.of_bytes(b"another"))))
    another, outside = t.updates.c.digest == digests.of_bytes(b"another"), copy_context()
    async with site.coordinator.database.write() as connection:
        await connection.execute(
            sa.select(t.blobs.c.id).where(t.blobs.c.digest == digest).with_for_update(read=True, key_share=True)
        )
        await connection.execute(cold(t.updates.update().where(another).values(digest=digest)))
        sweeping = asyncio.create_task(sweep(site), context=outside)

        async def has_looked() -> bool:
            return sweeping.done() or await is_somebody_waiting(site)

        await until(has_looked)
    assert await sweeping == 0 and await is_stored(site, digest)


async def is_somebody_waiting(site: Site) -> bool:
    """For a lock of the database."""
    async with site.coordinator.database.read() as connection:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool((await connection.execute(sa.text(waiting))).scalar_one())
