"""What an erasure took out of use stays so when the database is restored from before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from uuid import uuid4

import httpx
import pytest

from coordinator.tombstones.taint_lists import RECORD_BYTES, TaintLists
from services.core import digests
from tests.property.attacked_models import LEAVER, NAMES, update_of
from tests.property.attackers import REQUESTS, Walk
from tests.support.backups import Installation
from tests.support.restorable_coordinator import RestorableCoordinator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def sent(walk: Walk, who: str, data: bytes, **headers: str) -> httpx.Response:
    return await walk.answered(who, "PUT", f"/v1/blobs/{digests.of_bytes(data)}", content=data, headers=headers)


async def claimed(walk: Walk, name: str) -> dict[str, object]:
    while True:
        answer = await walk.answered(name, "POST", "/v1/tasks/claim", headers={"Prefer": "wait=1"})
        if answer.status_code == 200:
            task: dict[str, object] = answer.json()["tasks"][0]
            return task


async def trained(walk: Walk) -> str:
    """The first model of the run in which everybody is."""
    while True:
        (cohort,) = await walk.pages(f"/v1/runs/{walk.run_ids[0]}/cohorts")
        if cohort["round"] > 0:
            return str(cohort["head"])
        for name in NAMES:
            await walk.work(name)
        await asyncio.sleep(0.02)  # SQLite answers at once: others have their turn


@pytest.mark.parametrize("is_purged", [False, True])
async def test_a_restored_database_refuses_what_erasures_after_its_backup_took_out_of_use(
    is_purged: bool, tmp_path: Path
) -> None:
    coordinator = RestorableCoordinator(Installation(tmp_path))
    walk = Walk(coordinator, Random(0), "nobody")
    await coordinator.open()
    try:
        await walk.prepare({"kind": "flat"})
        update = update_of(LEAVER, await claimed(walk, LEAVER))
        coordinator.back_up()
        head = await trained(walk)
        model = await walk.answered("admin", "GET", f"/v1/checkpoints/{head}/model")
        assert model.status_code == 200 and digests.of_bytes(update) in walk.own
        await walk.erase(LEAVER)
        open_ones = {"received", "fenced", "executing", "verifying"} if is_purged else {"received"}
        while (await walk.pages(REQUESTS))[0]["status"] in open_ones:
            for name in NAMES[1:] if is_purged else ():
                await walk.work(name)
            await asyncio.sleep(0.02)
        await coordinator.restore(coordinator.backups[0])
        assert (await sent(walk, "operator", model.content)).status_code == 410
        assert (await sent(walk, "operator", update)).status_code == 410
        again = await claimed(walk, "b")
        refused = await sent(walk, "b", model.content, **{"Lethe-Task": str(again["task_id"])})
        assert refused.status_code == 410 and refused.json()["code"] == "superseded"
        spec = await walk.create_run(digests.of_bytes(model.content), {"kind": "flat"})
        assert spec is not None and not spec.is_success
        own = await sent(walk, "b", update_of("b", again), **{"Lethe-Task": str(again["task_id"])})
        assert own.status_code == 201  # what is clean is taken
    finally:
        await coordinator.close()


def test_lists_grow_by_what_is_new_and_survive_a_torn_write(tmp_path: Path) -> None:
    lists, request_id, federation_id = TaintLists(tmp_path / "taint"), uuid4(), uuid4()
    one, two, three = (digests.of_bytes(bytes([n])) for n in range(3))
    assert lists.read(request_id) is None and lists.sizes() == {}
    size = lists.add(request_id, federation_id, [one], [two])
    assert size == 3 * RECORD_BYTES == lists.add(request_id, federation_id, [one], [])
    (path,) = (tmp_path / "taint").iterdir()
    path.write_bytes(path.read_bytes() + b"m torn")
    assert lists.sizes() == {request_id: size}
    longer = lists.add(request_id, federation_id, [three], [two])
    assert lists.sizes() == {request_id: longer} and longer == size + RECORD_BYTES
    said = lists.read(request_id)
    assert said is not None and said.federation_id == federation_id
    assert (set(said.models), set(said.updates), said.num_bytes) == ({one, three}, {two}, longer)
    rest = lists.read(request_id, size)
    assert rest is not None and (set(rest.models), set(rest.updates)) == ({three}, set())
    assert path.stat().st_mode & 0o077 == 0
