"""After an erasure the rows and bytes of before, as a backup has them, give back what is clean, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from coordinator.blobs.files import FileBlobStore
from coordinator.engine.entities import Blob
from coordinator.engine.messages import ClaimTasks
from coordinator.runtime.storage import Storage
from coordinator.store import tables as t
from coordinator.store import worker_caches
from coordinator.store.rows import to_entity
from coordinator.store.worker_caches import WorkerCache
from services.core import digests
from services.core.errors import Rejected
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
NAMES = [f"c{i}" for i in range(6)]
TOPOLOGIES: list[dict[str, Any]] = [
    {"kind": "flat"},
    {"kind": "clusters", "num_clusters": 2, "assignment": "knot"},
    {"kind": "tree", "shape": "balanced"},
]


async def known_blobs(f: Federation) -> list[Blob]:
    return [to_entity(Blob, row) for row in await f.rows(t.blobs, t.blobs.c.status == "stored")]


async def opened(storage: Storage, blob: Blob) -> bytes | None:
    try:
        return b"".join([piece async for piece in storage.pieces(blob)])
    except Rejected as rejected:
        assert rejected.code == "key-missing"
        return None


async def caches(f: Federation, erasure_id: UUID) -> list[WorkerCache]:
    async with f.coordinator.database.read() as connection:
        return await worker_caches.of_request(connection, erasure_id)


async def drop_caches(f: Federation) -> set[str]:
    """Every worker drops what it is told to, and says so. Returns the digests."""
    told = set[str]()
    async with f.coordinator.database.write() as connection:
        for client in (await connection.execute(t.clients.select())).all():
            models = await worker_caches.superseded(connection, client.id)
            told |= set(models.digests)
            if models.through is not None:
                await worker_caches.note_dropped(connection, client.id, models.through)
    return told


@pytest.mark.parametrize(
    ("topology", "method"), [*((one, "retrain") for one in TOPOLOGIES), *((one, "federaser") for one in TOPOLOGIES[:2])]
)
async def test_a_backup_from_before_gives_back_what_is_clean_and_nothing_else(
    topology: dict[str, Any], method: str, tmp_path: Path
) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        changes = {"guarantee": "approximate"} if method == "federaser" else {}
        run = await f.wait_for_run(await f.create_run(topology=topology))
        assert run.status == "completed", run.reason
        before = await known_blobs(f)
        shutil.copytree(tmp_path / "home" / "blobs", tmp_path / "backup")
        backup = Storage(
            f.coordinator.database, FileBlobStore(tmp_path / "backup"), f.coordinator.sealer, f.coordinator.bus
        )
        for blob in before:
            data = await opened(backup, blob)
            assert data is not None and digests.of_bytes(data) == blob.digest  # while the keys are there
        erasure = await f.wait_for_erasure(await f.erase("c2", method=method, **changes))
        assert erasure.status == "completed", erasure.reason
        kept = {blob.id for blob in await known_blobs(f)}
        assert 0 < len([blob for blob in before if blob.id in kept]) < len(before)
        for blob in before:
            data = await opened(backup, blob)
            if blob.id in kept:
                assert data is not None and digests.of_bytes(data) == blob.digest
            else:
                assert data is None, (blob.origin, blob.cohort_id, blob.epoch)
        await backup.blobs.close()


@pytest.mark.parametrize("topology", TOPOLOGIES[:2])
async def test_a_backup_of_a_mended_line_gives_nothing_back_once_its_audit_has_failed(
    topology: dict[str, Any], tmp_path: Path
) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run = await f.wait_for_run(await f.create_run(topology=topology))
        assert run.status == "completed", run.reason
        f.offline.add("c2")  # so that the audit waits for it
        f.scores["c2"] = {
            "backdoor_success_rate": 0.9,
            "before_backdoor_success_rate": 0.9,
            "backdoor_samples": 50.0,
        }
        audit = {"thresholds": {"max_backdoor_success": 0.1}}
        changes: dict[str, Any] = {"params": {"layers": ["w"]}, "audit": audit, "fallback": "retrain"}
        erasure_id = await f.erase("c2", method="not", guarantee="approximate", recovery_rounds=1, **changes)
        await f.wait(t.erasures, erasure_id, lambda row: row.first_clean_at is not None)
        for _ in range(3000):
            if await f.rows(t.rounds, t.rounds.c.kind == "audit"):
                break
            await asyncio.sleep(0.01)
        (line,) = await f.rows(t.lines)
        own, is_merge = t.blobs.c.cohort_id == line.cohort_id, t.checkpoints.c.kind == "merge"
        merges = {row.digest for row in await f.rows(t.checkpoints, is_merge, t.checkpoints.c.superseded_by.is_(None))}
        rows = await f.rows(t.blobs, (own & (t.blobs.c.epoch > line.epoch_before)) | t.blobs.c.digest.in_(merges))
        mended = [to_entity(Blob, row) for row in rows if row.status == "stored"]
        shutil.copytree(tmp_path / "home" / "blobs", tmp_path / "backup")
        backup = Storage(
            f.coordinator.database, FileBlobStore(tmp_path / "backup"), f.coordinator.sealer, f.coordinator.bus
        )
        opened_before = [await opened(backup, blob) for blob in mended]
        assert len(mended) > 2 and None not in opened_before
        await drop_caches(f)
        assert all(one.is_confirmed for one in await caches(f, erasure_id))
        f.offline.clear()
        erasure = await f.wait_for_erasure(erasure_id)
        assert erasure.status == "completed", erasure.reason
        assert [row.action for row in await f.rows(t.lines)] == ["rolled-back"]
        served = {row.digest for row in await f.rows(t.checkpoints, t.checkpoints.c.superseded_by.is_(None))}
        assert any(blob.cohort_id != line.cohort_id for blob in mended) == (topology["kind"] == "clusters")
        for blob in mended:
            assert blob.digest in served or await opened(backup, blob) is None, (
                blob.origin,
                blob.cohort_id,
                blob.epoch,
            )
        await backup.blobs.close()
        assert not any(one.is_confirmed for one in await caches(f, erasure_id))  # not of what the method had made
        own_models = await f.rows(t.checkpoints, t.checkpoints.c.cohort_id == line.cohort_id)
        made = {row.digest for row in own_models if row.epoch == line.epoch_after} - served
        assert made and made <= await drop_caches(f)
        assert all(one.is_confirmed for one in await caches(f, erasure_id))


async def test_a_model_that_an_operator_uploads_again_is_not_stored_twice_and_goes_with_the_erasure(
    tmp_path: Path,
) -> None:
    async with federation(tmp_path, *NAMES) as f:
        f.work()
        run = await f.wait_for_run(await f.create_run())
        (head,) = {digest for digest in (await f.heads(run.id)).values() if digest is not None}
        model = (await f.coordinator.storage.find(f.id, [head]))[head]
        data = b"".join([piece async for piece in f.coordinator.storage.pieces(model)])
        assert await f.put_bytes(data) == head
        assert [row.origin for row in await f.rows(t.blobs, t.blobs.c.digest == head)] == ["job"]
        assert (await f.wait_for_erasure(await f.erase("c2"))).status == "completed"
        assert not await f.is_stored(head)
        with pytest.raises(Rejected) as refused:
            await f.put_bytes(data)
        assert refused.value.code == "superseded"
        assert not await f.is_stored(head)


async def test_updates_of_those_who_stay_on_a_model_that_is_equal_to_a_superseded_one_are_not_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients send the same, so that each model without the leaver has the bytes of the one with it."""
    monkeypatch.setattr("tests.support.federation.trained", lambda base, *_: np.full(base.shape, 0.5, np.float32))

    async with federation(tmp_path, "a", "b", "c") as f:
        shell = f.coordinator.shell

        async def answer(*names: str) -> None:
            for name in names:
                for granted in await shell.handle(ClaimTasks(f.clients[name])):
                    await f._answer(name, granted)

        async def train(until: int, *names: str) -> None:
            for _ in range(500):
                asked = await f.rows(t.rounds, t.rounds.c.run_id == run, t.rounds.c.status == "open")
                if [row.number for row in asked] == [until + 1]:
                    return
                if asked:
                    await answer(*names)
                await asyncio.sleep(0.01)
            raise AssertionError(f"round {until} was not reached")

        init = await f.put({"w": np.ones(6, np.float32)})
        run = await f.create_run(init=init, stop={"rounds": 3})
        await train(2, "a", "b", "c")
        turn = f.coordinator.sealer.keys.take_turn()  # so that the purge has to wait
        assert turn is not None
        erasure = await f.erase("a")
        await f.wait(t.erasures, erasure, lambda row: row.fenced_at is not None)
        await train(2, "b", "c")
        await answer("b")
        assert [row.client_name for row in await f.rows(t.updates, t.updates.c.status == "buffered")] == ["b"]
        turn.close()
        done = await f.wait(t.erasures, erasure, lambda row: row.status in ("completed", "requires_action", "failed"))
        assert done.status == "completed", done.reason
        assert [row.stored for row in await f.rows(t.updates, t.updates.c.status == "buffered")] == [True]
        f.work("b", "c")
        assert (await f.wait_for_run(run)).status == "completed"
