"""A blob is deleted, or named and recorded, but never both: the transactions interleave at their worst moments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.engine.messages import ClaimTasks, RecordBlob, SubmitResult
from coordinator.runtime import shell
from coordinator.store import inventory, references, rows
from coordinator.store import tables as t
from coordinator.store.inventory import Artefact
from services.core.errors import Rejected
from services.tensors.codec import write_file
from tests.support.federation import SIZE, Federation, federation, new_id

pytestmark = pytest.mark.anyio
UPDATE = {"w": np.full(SIZE, 0.25, np.float32)}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


async def upload(f: Federation, name: str) -> RecordBlob:
    """The bytes of an update, stored and not yet recorded."""
    path = f.directory / f"{new_id().hex}.safetensors"
    write_file(path, UPDATE)
    digest, found, num_bytes = await f.coordinator.blobs.adopt(f.id, path)
    layouts = found.layout.digest(), found.layout.updatable().digest()
    return RecordBlob(f.id, digest, num_bytes, *layouts, found.finite, f.clients[name])


async def task_of(f: Federation, name: str) -> Callable[[str], SubmitResult]:
    """The client has a task in a run of its own; returns how it answers."""
    await f.create_run(clients=[name], stop={"rounds": 1})
    granted: tuple[Any, ...] = ()
    while not granted:
        granted = await f.coordinator.shell.handle(ClaimTasks(f.clients[name]))
        await asyncio.sleep(0.01)
    task = granted[0].task
    return lambda digest: SubmitResult(task.id, task.client_id, task.lease_token or "", digest, 10, {})


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


async def test_a_submission_during_the_purge_of_equal_bytes_is_told_to_upload_again(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path, "leaver", "stayer", "other", url=url) as f:
        f.work("leaver", "stayer")
        trained = await f.create_run(clients=["leaver", "stayer"], stop={"rounds": 1})
        await f.wait_for_run(trained)
        answer = await task_of(f, "other")
        record = await upload(f, "leaver")
        await f.coordinator.shell.handle(record)
        blobs, submissions = f.coordinator.blobs, list[asyncio.Task[Any]]()
        delete = blobs.delete

        async def delete_slowly(owner: Any, *digests: str) -> None:
            if record.digest in digests and not submissions:
                submissions.append(asyncio.create_task(settled(f.coordinator.shell.handle(answer(record.digest)))))
                await ended_or_waits(f, submissions[0])
            await delete(owner, *digests)

        monkeypatch.setattr(blobs, "delete", delete_slowly)
        assert (await f.wait_for_erasure(await f.erase("leaver"))).status == "completed"
        assert [await submission for submission in submissions] == ["blob-missing"]
        assert await blobs.stat(f.id, record.digest) is None
        await f.coordinator.shell.handle(await upload(f, "other"))
        await f.coordinator.shell.handle(answer(record.digest))
        (run,) = [row.id for row in await f.rows(t.runs) if row.id != trained]
        assert (await f.wait_for_run(run)).status == "completed"


async def test_what_was_submitted_before_the_purge_of_equal_bytes_stays(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path, "leaver", "other", url=url) as f:
        answer = await task_of(f, "other")
        record = await upload(f, "leaver")
        await f.coordinator.shell.handle(record)
        purges: list[asyncio.Task[list[str]]] = []
        write_changes = rows.write_changes

        async def purge() -> list[str]:
            async with f.coordinator.database.write() as connection:
                return await inventory.forget_blobs(connection, f.id, [Artefact("upload", record.digest)])

        async def write_while_a_purge_begins(connection: Any, before: Any, after: Any) -> None:
            await write_changes(connection, before, after)
            if after.updates and not purges:
                purges.append(asyncio.create_task(purge()))
                await ended_or_waits(f, purges[0])

        monkeypatch.setattr(shell, "write_changes", write_while_a_purge_begins)
        await f.coordinator.shell.handle(answer(record.digest))
        assert [await one for one in purges] == [[]]
        (run,) = await f.rows(t.runs)
        assert (await f.wait_for_run(run.id)).status == "completed"


async def test_a_record_of_bytes_that_are_being_deleted_is_refused(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, "a", url=url) as f:
        record = await upload(f, "a")
        async with f.coordinator.database.write() as connection:
            unused = await references.release(connection, f.id, [record.digest])
            recording = asyncio.create_task(settled(f.coordinator.shell.handle(record)))
            await ended_or_waits(f, recording)
            await f.coordinator.blobs.delete(f.id, *unused)
        assert unused == [record.digest]
        assert await recording == "upload-offset-mismatch"
        assert await f.rows(t.blobs, t.blobs.c.digest == record.digest) == []


async def test_bytes_that_are_being_recorded_are_deleted_with_their_record(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with federation(tmp_path, "a", url=url) as f:
        record, blobs = await upload(f, "a"), f.coordinator.blobs
        stat, sweeps = blobs.stat, list[asyncio.Task[list[str]]]()

        async def sweep() -> list[str]:
            async with f.coordinator.database.write() as connection:
                unused = await references.release(connection, f.id, [record.digest])
                await blobs.delete(f.id, *unused)
                return unused

        async def stat_while_a_sweep_begins(owner: Any, digest: str) -> int | None:
            found = await stat(owner, digest)
            if not sweeps:
                sweeps.append(asyncio.create_task(sweep()))
                await ended_or_waits(f, sweeps[0])
            return found

        monkeypatch.setattr(blobs, "stat", stat_while_a_sweep_begins)
        await f.coordinator.shell.handle(record)
        assert [await one for one in sweeps] == [[record.digest]]
        assert await f.rows(t.blobs, t.blobs.c.digest == record.digest) == []
        assert await stat(f.id, record.digest) is None
