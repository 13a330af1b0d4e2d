"""What was forgotten does not come back, is read by nobody, and the certificate says what was found."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import sqlalchemy as sa

from coordinator.blobs import postgres as blob_tables
from services.audit.artefact_list import read_list
from services.core import digests
from tests.integration.api.site import Actor, Site, Tensors, blob, code_of, opened, until

pytestmark = pytest.mark.anyio
REQUESTS = "/v1/erasure-requests"
SIZE = 3000


def drawn(seed: int) -> Tensors:
    """Of the layout of the run's model, and of no other bytes than these."""
    return {"w": np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)}


async def by_operator(site: Site, tensors: Tensors) -> str:
    return await site.admin.put_blob(tensors, params={"federation_id": site.federation_id})


async def started(site: Site, key: str = "one", **changes: Any) -> str:
    run = await site.start_run(key, **{"init": await by_operator(site, drawn(0)), "stop": {"rounds": 2}, **changes})
    return str(run["id"])


async def trained(agent: Actor, seed: int) -> str:
    (task,) = await agent.claim()
    digest = await agent.put_blob(drawn(seed))
    assert (await agent.submit(task, digest)).status_code == 200
    return digest


async def has_status(site: Site, path: str, *statuses: str) -> bool:
    return (await site.admin.get(path))["status"] in statuses


async def heads(site: Site, run_id: str) -> dict[int, str]:
    """Digests of the models that are recorded, by round; of each the newest."""
    found = (await site.admin.get(f"/v1/runs/{run_id}/checkpoints?limit=200"))["items"]
    return {one["round"]: one["digest"] for one in sorted(found, key=lambda one: one["created_at"])}


async def filed(site: Site, name: str, *, until_status: str) -> str:
    body = {"federation_id": site.federation_id, "subjects": [name], "recovery_rounds": 0}
    answer = await site.admin.post(REQUESTS, body, expect=202, headers={"Idempotency-Key": name})
    path = f"{REQUESTS}/{answer['id']}"
    await until(lambda: has_status(site, path, until_status), within_s=30)
    return path


async def became(site: Site, path: str) -> dict[str, str]:
    """The disposition of each digest that the certificate accounts for."""
    assert (await site.admin.call("GET", f"{path}/certificate")).status_code == 200
    answer = await site.admin.call("GET", f"{path}/certificate/artefacts")
    return {leaf.digest: leaf.disposition for leaf in read_list(io.BytesIO(answer.content))}


async def read(actor: Actor, digest: str, site: Site) -> int:
    params = {} if actor.client_id else {"federation_id": site.federation_id}
    return (await actor.call("GET", f"/v1/blobs/{digest}", params=params)).status_code


async def test_weights_that_the_leaver_also_sent_stay_the_operators_and_the_certificate_says_so(site: Site) -> None:
    """Nobody certifies as deleted what is stored and served."""
    leaver, _ = await site.enrol("leaver", "other")
    weights = await by_operator(site, drawn(7))
    await started(site, "one", clients=["leaver"])
    served = await started(site, "two", init=weights, clients=["other"])
    await leaver.claim()
    assert await leaver.put_blob(drawn(7)) == weights
    own = await leaver.put_blob(drawn(8))
    path = await filed(site, "leaver", until_status="completed")
    said = await became(site, path)
    assert said[own] == "deleted" and await read(site.admin, own, site) in (404, 410)
    assert said[weights] == "also-held-as-operator-upload"
    assert await read(site.admin, weights, site) == 200
    assert (await heads(site, served))[0] == weights


async def test_no_run_begins_with_what_a_client_sent(site: Site) -> None:
    """Neither by its digest, nor after an operator has sent the same bytes again."""
    (client,) = await site.enrol("client")
    await started(site)
    sent = await trained(client, 1)
    (task,) = await client.claim()
    unsent = await client.put_blob(drawn(2), task)
    for seed, digest in ((1, sent), (2, unsent)):
        _, data = blob(drawn(seed))
        params = {"federation_id": site.federation_id}
        again = await site.admin.call("PUT", f"/v1/blobs/{digest}", content=data, params=params)
        assert (again.status_code, code_of(again)) == (409, "anothers-bytes")
        spec = {"name": "x", "model": {"name": "custom"}, "init": digest, "stop": {"rounds": 1}}
        body = {"federation_id": site.federation_id, "spec": spec}
        refused = await site.admin.call("POST", "/v1/runs", json=body, headers={"Idempotency-Key": digest})
        assert (refused.status_code, code_of(refused)) == (422, "invalid-run"), refused.text


async def test_a_superseded_model_comes_back_neither_by_its_digest_nor_by_its_bytes(site: Site) -> None:
    leaver, stayer = await site.enrol("leaver", "stayer")
    run_id = await started(site)
    for seed in (1, 3):
        await trained(leaver, seed)
        await trained(stayer, seed + 1)
    await until(lambda: has_status(site, f"/v1/runs/{run_id}", "completed"))
    models = await heads(site, run_id)
    params = {"federation_id": site.federation_id}
    kept = {n: (await site.admin.call("GET", f"/v1/blobs/{models[n]}", params=params)).content for n in (1, 2)}

    async def assert_refused() -> None:
        (task,) = await stayer.claim()
        for number, data in kept.items():
            digest = models[number]
            assert digests.of_bytes(data) == digest
            by_name = await stayer.submit(task, digest)
            assert (by_name.status_code, code_of(by_name)) == (409, "blob-missing")
            for actor, options in ((stayer, {}), (site.admin, {"params": params})):
                again = await actor.call("PUT", f"/v1/blobs/{digest}", content=data, **options)
                assert (again.status_code, code_of(again)) == (410, "superseded")
            assert code_of(await stayer.submit(task, digest)) == "blob-missing"
            spec = {"name": "x", "model": {"name": "custom"}, "init": digest, "stop": {"rounds": 1}}
            body = {"federation_id": site.federation_id, "spec": spec}
            refused = await site.admin.call("POST", "/v1/runs", json=body, headers={"Idempotency-Key": digest})
            assert code_of(refused) == "invalid-run" and "superseded" in refused.json()["detail"]
        assert (await stayer.submit(task, await stayer.put_blob(drawn(5)))).status_code == 200

    path = await filed(site, "leaver", until_status="executing")
    await assert_refused()
    await trained(stayer, 6)
    await until(lambda: has_status(site, path, "completed"), within_s=30)
    await started(site, "again", clients=["stayer"])
    await assert_refused()


async def test_from_the_fence_on_nobody_reads_the_leavers_updates_nor_what_was_trained_on_its_models(
    site: Site,
) -> None:
    leaver, stayer = await site.enrol("leaver", "stayer")
    viewer = await site.staff("viewer")
    run_id = await started(site)
    own = [await trained(leaver, 1)]
    clean = await trained(stayer, 2)
    own.append(await trained(leaver, 3))
    tainted = await trained(stayer, 4)
    await until(lambda: has_status(site, f"/v1/runs/{run_id}", "completed"))
    models = await heads(site, run_id)
    for digest in (*own, clean, tainted, *models.values()):
        assert await read(viewer, digest, site) == 200
    path = await filed(site, "leaver", until_status="executing")  # the stayer is away: it goes no further
    for digest in (*own, tainted, models[1], models[2]):
        for actor in (site.admin, viewer):
            answer = await actor.call("GET", f"/v1/blobs/{digest}", params={"federation_id": site.federation_id})
            assert (answer.status_code, code_of(answer)) == (410, "superseded")
            assert path.rpartition("/")[2] in answer.json()["detail"]
            head = await actor.call("HEAD", f"/v1/blobs/{digest}", params={"federation_id": site.federation_id})
            assert head.status_code == 410
        assert await read(stayer, digest, site) in (404, 410)
    assert await read(viewer, models[0], site) == 200
    assert await has_status(site, path, "executing")


async def test_files_that_no_row_names_are_gone_after_an_erasure(site: Site) -> None:
    """Left by a crash, by a restored backup, or by a hand: at once, however new they are."""
    await site.enrol("leaver", "stayer")
    _, data = blob(drawn(1))
    home = site.coordinator.settings.blob_path / site.federation_id
    home.mkdir(exist_ok=True)
    planted = [home / digests.of_bytes(data).removeprefix("sha256:"), home / ("0" * 32)]
    for path in planted:
        path.write_bytes(data)
    init = await by_operator(site, drawn(0))
    await filed(site, "leaver", until_status="completed")
    assert not [path for path in planted if path.exists()]
    assert await read(site.admin, init, site) == 200


async def test_a_lost_key_fails_the_run_by_its_name_and_restoring_it_lets_the_run_go_on(site: Site) -> None:
    (client,) = await site.enrol("client")
    run_id = await started(site, stop={"rounds": 1})
    (task,) = await client.claim()
    digest = await client.put_blob(drawn(1))
    (key,) = (site.coordinator.settings.evidence_path / "keys").glob("cohort-*")
    away = key.with_name("away")
    key.rename(away)
    assert (await client.submit(task, digest)).status_code == 200
    await until(lambda: has_status(site, f"/v1/runs/{run_id}", "failed"))
    reason = (await site.admin.get(f"/v1/runs/{run_id}"))["reason"]
    assert key.name in reason and "restore the keys from their backup" in reason
    unreadable = await client.call("GET", f"/v1/blobs/{digest}")
    assert (unreadable.status_code, code_of(unreadable)) == (503, "key-missing")
    assert key.name in unreadable.json()["detail"] and not key.exists(), "no other key takes its name"
    away.rename(key)
    await site.admin.post(f"/v1/runs/{run_id}/resume", expect=200)
    await trained(client, 2)  # its round begins anew
    await until(lambda: has_status(site, f"/v1/runs/{run_id}", "completed"))
    assert await read(client, digest, site) == 200


# --- sealed -----------------------------------------------------------------------------------------------------------


def windows(plain: Iterable[bytes]) -> Iterator[bytes]:
    """Such that every 64 bytes in a row of any of these have one of them inside."""
    for data in plain:
        yield from (data[start : start + 32] for start in range(0, len(data) - 31, 32))


def files_below(*folders: Path) -> list[bytes]:
    return [path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()]


async def plain_bytes(site: Site, client: Actor) -> list[bytes]:
    """All updates and models of a run, and the part of an update of which the rest never came."""
    run_id = await started(site)
    sent = [blob(drawn(1))[1]]
    await trained(client, 1)
    (task,) = await client.claim()
    digest, part = blob(drawn(2))
    headers = {"Content-Type": "application/partial-upload", "Upload-Offset": "0", "Upload-Length": str(len(part))}
    half = len(part) // 2
    partial = await client.call("PATCH", f"/v1/blobs/{digest}", content=part[:half], headers=headers)
    assert partial.status_code == 204
    for number, model in (await heads(site, run_id)).items():
        params = {"federation_id": site.federation_id}
        answer = await site.admin.call("GET", f"/v1/blobs/{model}", params=params)
        assert answer.status_code == 200, number
        sent.append(answer.content)
    assert (await client.call("GET", f"/v1/blobs/{task['weights']}")).status_code == 200
    return [*sent, part[:half]]


async def test_files_of_blobs_and_scratch_hold_nothing_plain(site: Site) -> None:
    (client,) = await site.enrol("client")
    plain = await plain_bytes(site, client)
    settings = site.coordinator.settings
    stored = files_below(settings.blob_path, settings.home / "scratch")
    assert len(stored) >= 5 and sum(map(len, stored)) > sum(map(len, plain))
    assert not [1 for window in windows(plain) for data in stored if window in data]


async def test_blobs_in_postgres_and_what_redis_caches_hold_nothing_plain(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    async with opened(tmp_path / "home", postgres_url, blobs="postgres", redis_url=redis_url) as site:
        (client,) = await site.enrol("client")
        plain = await plain_bytes(site, client)
        async with site.coordinator.database.read() as connection:
            stored = list((await connection.execute(sa.select(blob_tables.chunks.c.data))).scalars())
        with redis.Redis.from_url(redis_url) as cache:
            found = [cache.get(key) for key in cache.scan_iter() if cache.type(key) == b"string"]
        cached = [value for value in found if isinstance(value, bytes) and len(value) > SIZE]
        assert len(stored) >= 5 and cached
        for data in (*stored, *cached, *files_below(tmp_path)):
            assert not [1 for window in windows(plain) if window in bytes(data)]
