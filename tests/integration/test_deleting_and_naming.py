"""Bytes are given up by a mark, a commit and a deletion, in that order: nobody loses bytes that are another's own, and
nothing but rows happens inside a transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.blobs.files import FileBlobStore
from coordinator.engine.entities import Blob, Task
from coordinator.engine.messages import ClaimTasks, SubmitResult
from coordinator.keys.directory import DirectoryKeys
from coordinator.runtime.upload_receiver import Complete
from coordinator.runtime.uploads import UploadRequest
from coordinator.store import blobs as rows
from coordinator.store import tables as t
from coordinator.store.database import Database
from services.core import digests
from services.core.errors import Rejected
from services.tensors.codec import write_file
from services.tensors.inspection import Inspection
from tests.support.federation import SIZE, Federation, federation

pytestmark = pytest.mark.anyio
UPDATE = {"w": np.full(SIZE, 0.25, np.float32)}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


async def task_of(f: Federation, name: str) -> Task:
    """The client has a task in a run of its own."""
    await f.create_run(clients=[name], stop={"rounds": 1})
    granted: tuple[Any, ...] = ()
    while not granted:
        granted = await f.coordinator.shell.handle(ClaimTasks(f.clients[name]))
        await asyncio.sleep(0.01)
    return granted[0].task  # type: ignore[no-any-return]


def answer(task: Task, digest: str) -> SubmitResult:
    return SubmitResult(task.id, task.client_id, task.lease_token or "", digest, 10, {})


async def received(f: Federation, task: Task) -> tuple[Blob, Inspection]:
    """All bytes of an update are there; that they are is not recorded yet."""
    path = f.directory / "update.safetensors"
    write_file(path, UPDATE)
    data = path.read_bytes()

    async def body() -> AsyncIterator[bytes]:
        yield data

    wanted = UploadRequest(f.id, task.client_id, task.id, digests.of_bytes(data), len(data))
    blob = await f.coordinator.uploads.announce(wanted)
    got = await f.coordinator.receiver.receive(blob, len(data), body())
    assert isinstance(got, Complete)
    return blob, got.inspection


async def ended_or_waits(f: Federation, work: asyncio.Task[Any]) -> None:
    """Until the other transaction has gone through, or stands at a lock. On SQLite there is one writer at a time."""
    if f.coordinator.database.is_sqlite:
        await asyncio.sleep(0)
        return
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with asyncio.timeout(20):
        while not work.done():
            async with f.coordinator.database.read() as connection:
                if (await connection.execute(waiting)).scalar_one():
                    return
            await asyncio.sleep(0.005)


async def settled(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except Rejected as rejected:
        return rejected.code


async def test_a_submission_during_the_purge_of_equal_bytes_is_taken(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are two blobs: the purge of one says nothing of the other."""
    async with federation(tmp_path, "leaver", "other", url=url) as f:
        tasks = {name: await task_of(f, name) for name in ("leaver", "other")}
        digest = {await f.put(UPDATE, task) for task in tasks.values()}.pop()
        store, submissions = f.coordinator.blobs, list[Any]()
        delete = store.delete

        async def delete_while_other_submits(owner: Any, *names: str) -> None:
            if not submissions:
                submissions.append(await f.coordinator.shell.handle(answer(tasks["other"], digest)))
            await delete(owner, *names)

        monkeypatch.setattr(store, "delete", delete_while_other_submits)
        assert (await f.wait_for_erasure(await f.erase("leaver"))).status == "completed"
        assert len(submissions) == 1
        assert (await f.wait_for_run(tasks["other"].run_id)).status == "completed"
        (left,) = await f.rows(t.blobs, t.blobs.c.digest == digest, t.blobs.c.origin == "task")
        assert left.client_id == f.clients["other"] and await store.size(f.id, left.id.hex)


async def test_a_record_of_bytes_that_are_being_given_up_is_refused(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, "a", url=url) as f:
        blob, inspection = await received(f, await task_of(f, "a"))
        outside = copy_context()
        async with f.coordinator.database.write() as connection:
            await rows.give_up(connection, [blob.id])
            attempt = settled(f.coordinator.uploads.record(blob, inspection))
            recording = asyncio.create_task(attempt, context=outside)
            await ended_or_waits(f, recording)
        assert await recording == "upload-offset-mismatch"
        await f.coordinator.storage.delete_dropped()
        assert await f.rows(t.blobs, t.blobs.c.id == blob.id) == []
        assert await f.coordinator.blobs.size(f.id, blob.id.hex) is None


async def test_what_was_recorded_first_is_not_given_up(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, "a", url=url) as f:
        blob, inspection = await received(f, await task_of(f, "a"))
        await f.coordinator.uploads.record(blob, inspection)
        await f.coordinator.storage.give_up(f.id, [blob.id])
        (row,) = await f.rows(t.blobs, t.blobs.c.id == blob.id)
        assert row.status == "stored" and await f.coordinator.blobs.size(f.id, blob.id.hex)


async def test_nothing_but_rows_happens_inside_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither bytes nor keys are touched while one is open: whatever a crash leaves, a row says what it is."""
    is_open: ContextVar[bool] = ContextVar("is_open", default=False)
    write, touched = Database.write, set[str]()

    @contextlib.asynccontextmanager
    async def noted(self: Database, **options: Any) -> AsyncIterator[Any]:
        async with write(self, **options) as connection:
            token = is_open.set(True)
            try:
                yield connection
            finally:
                is_open.reset(token)

    def watched(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def checked(*arguments: Any, **options: Any) -> Any:
            assert not is_open.get(), name
            touched.add(name)
            return real(*arguments, **options)

        monkeypatch.setattr(kind, name, checked)

    monkeypatch.setattr(Database, "write", noted)
    for name in ("append", "truncate", "sync", "write", "read", "adopt", "delete", "list"):
        watched(FileBlobStore, name)
    for name in ("find_or_make", "destroy"):
        watched(DirectoryKeys, name)
    async with federation(tmp_path, "leaver", "b", "c") as f:
        f.work()
        history = {"updates": {"dtype": "int8"}}
        run_id = await f.create_run(stop={"rounds": 2}, history=history, retention={"updates": "none"})
        assert (await f.wait_for_run(run_id)).status == "completed"
        erasure = await f.wait_for_erasure(await f.erase("leaver"))
        assert erasure.status == "completed", erasure.reason
    assert {"write", "adopt", "delete", "list", "find_or_make", "destroy"} <= touched
