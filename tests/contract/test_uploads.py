"""How uploads become blobs, whatever breaks on the way: with files and SQLite, and all in a real PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.blobs.port import BlobStore, StorageFull
from coordinator.engine.entities import Blob, Task
from coordinator.engine.messages import ClaimTasks
from coordinator.runtime.blob_sealer import operators_blob
from coordinator.runtime.storage import name_of
from coordinator.runtime.upload_receiver import (
    MOST_HELD_BYTES,
    Complete,
    Ends,
    Memory,
    Partial,
    Received,
    UploadReceiver,
)
from coordinator.runtime.uploads import UploadRequest
from coordinator.store import tables as t
from services.core import digests
from services.core.errors import Rejected
from services.sealing.segments import SEGMENT_BYTES
from services.tensors import codec
from services.tensors.layout import UPLOADED
from tests.support.federation import Federation, federation, reopened

pytestmark = pytest.mark.anyio

LARGE = 700_000
"""Numbers in an upload that comes in several pieces."""


@pytest.fixture(params=["files", "postgres"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What makes a coordinator keep its rows and bytes there."""
    if request.param == "files":
        return {}
    return {"url": str(request.getfixturevalue("postgres_url")), "blobs": "postgres"}


@pytest.fixture
async def f(place: dict[str, Any], tmp_path: Path) -> AsyncIterator[Federation]:
    async with federation(tmp_path / "f", "a", "b", **place) as found:
        yield found


def tensor_file(directory: Path, num_floats: int = 1000, value: float = 0.5) -> bytes:
    path = directory / "made.safetensors"
    codec.write_file(path, {"weight": np.linspace(0, value, num_floats, dtype=np.float32)})
    data = path.read_bytes()
    path.unlink()
    return data


async def stream(data: bytes, size: int = 65536) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def broken_stream(data: bytes) -> AsyncIterator[bytes]:
    async for chunk in stream(data):
        yield chunk
    raise ConnectionResetError("the client is gone")


async def announced(f: Federation, data: bytes, task: Task | None = None, digest: str | None = None) -> Blob:
    client_id, task_id = (None, None) if task is None else (task.client_id, task.id)
    wanted = UploadRequest(f.id, client_id, task_id, digest or digests.of_bytes(data), len(data))
    return await f.coordinator.uploads.announce(wanted)


async def send(
    f: Federation, blob: Blob, data: bytes, offset: int = 0, chunks: AsyncIterator[bytes] | None = None
) -> Received:
    """All of `data` from the offset on."""
    rest = stream(data[offset:]) if chunks is None else chunks
    return await f.coordinator.receiver.receive(blob, len(data), rest, offset or None)


async def finish(f: Federation, blob: Blob, received: Received) -> None:
    assert isinstance(received, Complete)
    await f.coordinator.uploads.record(blob, received.inspection)


async def part_bytes(f: Federation, blob: Blob) -> int:
    return await f.coordinator.receiver.part_bytes(blob)


async def stored(f: Federation, data: bytes, start: int = 0, end: int | None = None) -> bytes:
    """What is read of the blob with these bytes."""
    found = await f.coordinator.storage.find(f.id, [digests.of_bytes(data)])
    (blob,) = found.values()
    return b"".join([piece async for piece in f.coordinator.storage.pieces(blob, start, end)])


async def is_given_up(f: Federation, blob: Blob) -> bool:
    """Neither a row nor a byte of it is left."""
    rows = await f.rows(t.blobs, t.blobs.c.id == blob.id)
    return not rows and await f.coordinator.blobs.size(f.id, name_of(blob)) is None


async def claimed(f: Federation, *names: str) -> list[Task]:
    """A task of a new run for each."""
    await f.create_run(name="-".join(("for", *names)), clients=list(names))
    found = []
    for name in names:
        with f.coordinator.bus.waiter(f"client:{f.clients[name]}") as waiter:
            while not (granted := await f.coordinator.shell.handle(ClaimTasks(f.clients[name]))):
                await waiter.wait(0.2)
        found.append(granted[0].task)
    return found


async def rejection(work: Any) -> Rejected:
    with pytest.raises(Rejected) as caught:
        await work
    return caught.value


# --- receiving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_floats", [1000, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("chunk_bytes", [65536, 2**30], ids=["many chunks", "one chunk"])
async def test_an_upload_becomes_a_blob_that_reads_back_the_same_and_lies_sealed(
    f: Federation, tmp_path: Path, num_floats: int, chunk_bytes: int
) -> None:
    data = tensor_file(tmp_path, num_floats)
    blob = await announced(f, data)
    received = await send(f, blob, data, chunks=stream(data, chunk_bytes))
    assert isinstance(received, Complete)
    assert (received.inspection.num_bytes, received.inspection.finite) == (len(data), True)
    assert [tensor.name for tensor in received.inspection.layout.tensors] == ["weight"]
    assert not await f.is_stored(digests.of_bytes(data)), "nobody has recorded it yet"
    await finish(f, blob, received)
    assert await stored(f, data) == data
    sealed = await f.coordinator.blobs.read(f.id, name_of(blob), 0, 2 * len(data))
    assert len(sealed) > len(data)
    assert data[2000:2064] not in sealed


async def test_a_number_that_is_not_finite_is_reported(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, value=float("nan"))
    received = await send(f, await announced(f, data), data)
    assert isinstance(received, Complete)
    assert not received.inspection.finite


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (5, None), (100, 100), (SEGMENT_BYTES - 5, 4 * SEGMENT_BYTES + 5), (0, None)]
)
async def test_a_range_is_read_exactly(f: Federation, tmp_path: Path, start: int, end: int | None) -> None:
    data = tensor_file(tmp_path, num_floats=LARGE)
    await f.put_bytes(data)
    assert await stored(f, data, start, end) == data[start:end]


async def test_a_file_of_very_many_tensors_is_read_back_and_checked(f: Federation, tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    codec.write_file(path, {f"tensor-{number}": np.full(10, number, np.float32) for number in range(6000)})
    data = path.read_bytes()
    await f.put_bytes(data)
    assert await stored(f, data) == data
    codec.write_file(path, {f"tensor-{number}": np.zeros(0, np.float32) for number in range(UPLOADED.tensors + 1)})
    too_many = path.read_bytes()
    blob = await announced(f, too_many)
    assert "tensors" in (await rejection(send(f, blob, too_many))).detail
    assert await is_given_up(f, blob)


async def test_what_arrived_before_the_client_vanished_stays(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=LARGE)
    blob, half = await announced(f, data), len(data) // 2 + 1
    with pytest.raises(ConnectionResetError):
        await send(f, blob, data, chunks=broken_stream(data[:half]))
    assert await part_bytes(f, blob) == half
    assert not await f.is_stored(digests.of_bytes(data))
    assert (await announced(f, data)).id == blob.id
    await finish(f, blob, await send(f, blob, data, half))
    assert await stored(f, data) == data


async def test_an_upload_may_come_in_many_requests(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    blob = await announced(f, data)
    received: Received = Partial(0)
    for start in range(0, len(data), 1000):
        received = await send(f, blob, data, start, chunks=stream(data[start : start + 1000]))
        if start + 1000 < len(data):
            assert received == Partial(start + 1000)
    await finish(f, blob, received)
    assert await stored(f, data, 990, 2010) == data[990:2010]


@pytest.mark.parametrize("num_floats", [1000, LARGE], ids=["small", "large"])
async def test_a_whole_part_that_was_never_recorded_completes_without_more_bytes(
    f: Federation, tmp_path: Path, num_floats: int
) -> None:
    data = tensor_file(tmp_path, num_floats)
    blob = await announced(f, data)
    assert isinstance(await send(f, blob, data), Complete)  # and then the process died
    await finish(f, blob, await send(f, blob, data, await part_bytes(f, blob)))
    assert await stored(f, data) == data


@pytest.mark.parametrize("num_stored", [0, 500])
async def test_an_upload_that_does_not_continue_the_part_is_rejected(
    f: Federation, tmp_path: Path, num_stored: int
) -> None:
    data = tensor_file(tmp_path)
    blob = await announced(f, data)
    if num_stored:
        await send(f, blob, data, chunks=stream(data[:num_stored]))
    error = await rejection(send(f, blob, data, 700))
    assert (error.code, error.extra["offset"]) == ("upload-offset-mismatch", num_stored)
    assert await part_bytes(f, blob) == num_stored


@pytest.mark.parametrize("num_floats", [1000, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("is_resumed", [False, True])
async def test_wrong_bytes_are_rejected_and_given_up(
    f: Federation, tmp_path: Path, num_floats: int, is_resumed: bool
) -> None:
    data, other = tensor_file(tmp_path, num_floats), tensor_file(tmp_path, num_floats, value=2.0)
    blob = await announced(f, data)
    if is_resumed:
        await send(f, blob, data, chunks=stream(other[:600]))
    error = await rejection(send(f, blob, other, 600 * is_resumed))
    assert (error.code, error.extra["actual"]) == ("digest-mismatch", digests.of_bytes(other))
    assert await is_given_up(f, blob)
    await f.put_bytes(data)
    assert await stored(f, data) == data


@pytest.mark.parametrize("data", [b"", b"\x80\x04pickle" + bytes(100), bytes(4096), b"{}"])
async def test_what_is_not_safetensors_is_rejected_and_given_up(f: Federation, data: bytes) -> None:
    blob = await announced(f, data)
    assert (await rejection(send(f, blob, data))).code == "not-safetensors"
    assert await is_given_up(f, blob)


async def test_more_bytes_than_announced_are_rejected_and_given_up(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    blob = await announced(f, data)
    assert (await rejection(send(f, blob, data, chunks=stream(data + b"x")))).code == "too-large"
    assert await is_given_up(f, blob)


async def test_an_upload_that_finds_no_room_is_given_up(place: dict[str, Any], tmp_path: Path) -> None:
    if place:
        pytest.skip("only the file store keeps a reserve")
    async with federation(tmp_path / "f", "a") as f:
        data = tensor_file(tmp_path)
        f.coordinator.blobs._reserve_bytes = 2**60  # type: ignore[attr-defined]
        for chunks in (stream(data), stream(data[:100])):
            blob = await announced(f, data)
            with pytest.raises(StorageFull):
                await send(f, blob, data, chunks=chunks)
            assert await is_given_up(f, blob)


# --- what going on costs ----------------------------------------------------------------------------------------------


class Watched:
    """A blob store that notes what is read of it: how often, and how many bytes."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.num_reads, self.num_bytes = 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, owner: UUID, name: str, start: int, end: int) -> bytes:
        data = await self._store.read(owner, name, start, end)
        self.num_reads, self.num_bytes = self.num_reads + 1, self.num_bytes + len(data)
        return data

    @asynccontextmanager
    async def local(self, owner: UUID, names: Iterable[str]) -> AsyncIterator[dict[str, Path]]:
        async with self._store.local(owner, names) as paths:
            self.num_reads += len(paths)
            self.num_bytes += sum(path.stat().st_size for path in paths.values())
            yield paths


async def send_in_parts(f: Federation, blob: Blob, data: bytes, size: int) -> list[tuple[int, int]]:
    """All but the last part, each in a request of its own; (reads, bytes) that each took of what was stored before."""
    watched = Watched(f.coordinator.storage.blobs)
    f.coordinator.storage.blobs = watched
    costs = []
    for start in range(0, len(data) - size, size):
        before = watched.num_reads, watched.num_bytes
        received = await f.coordinator.receiver.receive(blob, len(data), stream(data[start : start + size]), start)
        assert received == Partial(start + size)
        costs.append((watched.num_reads - before[0], watched.num_bytes - before[1]))
    return costs


async def test_going_on_with_an_upload_reads_nothing_of_what_it_has_sent(f: Federation, tmp_path: Path) -> None:
    """A file in a hundred requests costs as much as in one, and not fifty times as much."""
    data = tensor_file(tmp_path, num_floats=25_000)
    blob = await announced(f, data)
    costs = await send_in_parts(f, blob, data, 1000)
    assert len(costs) == 100 and set(costs) == {(0, 0)}
    await finish(f, blob, await send(f, blob, data, 100_000))
    assert await stored(f, data) == data


async def test_another_process_that_goes_on_reads_lengths_only(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=LARGE)
    blob = await announced(f, data)
    await send_in_parts(f, blob, data, 900_000)
    watched = f.coordinator.storage.blobs
    assert isinstance(watched, Watched)
    num_stored = await watched.size(f.id, name_of(blob))
    another = UploadReceiver(f.coordinator.storage)
    assert await another.part_bytes(blob) == 2_700_000
    assert watched.num_bytes == 4 * watched.num_reads < num_stored / 1000
    before = watched.num_reads
    assert await another.part_bytes(blob) == 2_700_000 and watched.num_reads == before
    await finish(f, blob, await another.receive(blob, len(data), stream(data[2_700_000:]), 2_700_000))
    assert await stored(f, data) == data


def test_only_so_many_ends_of_parts_are_remembered() -> None:
    ends = Ends(most=2)
    some = [operators_blob(UUID(int=1), datetime.now(UTC), None, 0) for _ in range(3)]
    for number, blob in enumerate(some):
        ends.note(blob, number + 1, number + 33)
    assert [ends.of(blob) for blob in some] == [(0, 0), (2, 34), (3, 35)]


# --- at once ----------------------------------------------------------------------------------------------------------


async def test_two_uploads_of_the_same_blob_at_once_end_in_one_whole_blob(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=LARGE)
    blobs = await asyncio.gather(*(announced(f, data) for _ in range(4)))
    assert len({blob.id for blob in blobs}) == 1
    receive = f.coordinator.receiver.receive
    sent = (receive(blob, len(data), stream(data), 0) for blob in blobs)
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    whole = [outcome for outcome in outcomes if isinstance(outcome, Complete)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    assert len(whole) == 1 and len(refused) == 3
    assert {outcome.code for outcome in refused} == {"upload-offset-mismatch"}
    await finish(f, blobs[0], whole[0])
    assert await stored(f, data) == data


async def test_an_upload_does_not_wait_behind_one_that_hangs(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=LARGE)
    blob, goes_on, is_stuck = await announced(f, data), asyncio.Event(), asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        yield data[:-4]
        is_stuck.set()
        await goes_on.wait()
        yield data[-4:]

    first = asyncio.create_task(send(f, blob, data, chunks=hanging()))
    await is_stuck.wait()
    offset = await part_bytes(f, blob)
    assert offset
    await finish(f, blob, await send(f, blob, data, offset))
    goes_on.set()
    assert (await rejection(first)).code == "upload-offset-mismatch"
    assert await stored(f, data) == data


async def test_a_cancelled_upload_leaves_a_part_that_can_go_on(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=LARGE)
    blob, is_stuck = await announced(f, data), asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        yield data[:-1]
        is_stuck.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(send(f, blob, data, chunks=hanging()))
    await is_stuck.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await finish(f, blob, await send(f, blob, data, await part_bytes(f, blob)))
    assert await stored(f, data) == data


async def test_uploads_that_find_no_memory_go_on_in_small_pieces(f: Federation, tmp_path: Path) -> None:
    """As many slow ones as fill it, and one more that is not kept waiting."""
    data = tensor_file(tmp_path, num_floats=200_000)
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def trickle(content: bytes) -> AsyncIterator[bytes]:
        yield content[:1]
        begun.release()
        await go_on.wait()
        raise ConnectionResetError("the client is gone")

    async def send_slowly(number: int) -> None:
        blob = await announced(f, data, digest=digests.of_bytes(b"%d" % number))
        with pytest.raises(ConnectionResetError):
            await send(f, blob, data, chunks=trickle(data))
        assert await part_bytes(f, blob) == 1

    num_slow = MOST_HELD_BYTES // len(data) + 1
    async with asyncio.TaskGroup() as sending:
        for number in range(num_slow):
            sending.create_task(send_slowly(number))
        for _ in range(num_slow):
            await begun.acquire()
        await f.put_bytes(data)
        assert await stored(f, data) == data
        go_on.set()


def test_memory_is_lent_while_there_is_some_and_given_back() -> None:
    memory = Memory(10)
    with memory.lent(6) as first, memory.lent(6) as second, memory.lent(4) as third:
        assert (first, second, third) == (True, False, True)
    with memory.lent(10) as whole:
        assert whole


# --- whose ------------------------------------------------------------------------------------------------------------


async def test_clients_that_send_equal_bytes_at_once_have_a_blob_each(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=300_000)
    tasks = await claimed(f, "a", "b")
    await asyncio.gather(*(f.put_bytes(data, task) for task in tasks))
    rows = await f.rows(t.blobs, t.blobs.c.digest == digests.of_bytes(data))
    assert {(row.origin_id, row.client_id, row.status) for row in rows} == {
        (task.id, task.client_id, "stored") for task in tasks
    }
    assert len({(row.key_name, row.client_key_name) for row in rows}) == 2


async def test_the_record_of_an_update_need_not_wait_for_the_disk_and_can_be_made_again(
    f: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a client is told when its record is lost, and uploads again; what an operator uploaded must last."""
    database, waits = f.coordinator.database, list[bool]()
    (task,) = await claimed(f, "a")
    write = database.write

    def watched(*, is_durable: bool = True) -> Any:
        waits.append(is_durable)
        return write(is_durable=is_durable)

    update, init = tensor_file(tmp_path, 1000), tensor_file(tmp_path, 2000)
    for data, sender in ((update, task), (init, None)):
        blob = await announced(f, data, sender)
        received = await send(f, blob, data)
        with monkeypatch.context() as patched:
            patched.setattr(database, "write", watched)
            await finish(f, blob, received)
    assert waits == [False, True]
    async with database.write() as connection:  # the database's host lost its power
        await connection.execute(t.blobs.update().where(t.blobs.c.client_id.is_not(None)).values(status="arriving"))
    await f.put_bytes(update, task)
    assert await stored(f, update) == update


async def test_clients_do_not_share_a_part(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    one, other = await claimed(f, "a", "b")
    poisoned = await announced(f, data, one)
    await send(f, poisoned, data, chunks=stream(b"poison"))
    assert await part_bytes(f, await announced(f, data, other)) == 0
    await f.put_bytes(data, other)
    assert await stored(f, data) == data


async def test_a_client_uploads_only_for_a_task_that_it_holds(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    digest, uploads = digests.of_bytes(data), f.coordinator.uploads
    nothing = UploadRequest(f.id, f.clients["a"], None, digest, len(data))
    assert (await rejection(uploads.announce(nothing))).code == "no-task"
    assert (await rejection(uploads.find(nothing))).code == "no-task"
    one, other = await claimed(f, "a", "b")
    assert (await uploads.announce(nothing)).origin_id == one.id, "inferred"
    anothers = UploadRequest(f.id, f.clients["a"], other.id, digest, len(data))
    assert (await rejection(uploads.announce(anothers))).code == "no-task"
    (second,) = await claimed(f, "a")
    assert "Lethe-Task" in (await rejection(uploads.announce(nothing))).detail
    for task in (one, second):
        assert (await announced(f, data, task)).origin_id == task.id


async def test_after_the_fence_nothing_more_is_uploaded_for_its_tasks(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    one, other = await claimed(f, "a", "b")
    begun = await announced(f, data, one)
    received = await send(f, begun, data)
    erasure_id = await f.erase("a")
    await f.wait(t.erasures, erasure_id, lambda row: row.fenced_at is not None)
    for task in (one, other):
        assert (await rejection(announced(f, data, task))).code == "no-task"
    assert isinstance(received, Complete)
    refused = await rejection(f.coordinator.uploads.record(begun, received.inspection))
    assert refused.code in ("client-erased", "upload-offset-mismatch")
    assert await is_given_up(f, begun)


async def test_an_operators_upload_that_a_client_has_sent_is_given_up(f: Federation, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    (task,) = await claimed(f, "a")
    blob = await announced(f, data)
    await f.put_bytes(data, task)
    received = await send(f, blob, data)
    assert isinstance(received, Complete)
    assert (await rejection(f.coordinator.uploads.record(blob, received.inspection))).code == "anothers-bytes"
    assert await is_given_up(f, blob)
    assert (await rejection(announced(f, data))).code == "anothers-bytes", "and not begun again"
    assert await stored(f, data) == data, "the client's own stays"


async def test_what_was_announced_together_is_announced_once_each(f: Federation, tmp_path: Path) -> None:
    files = [tensor_file(tmp_path, value=float(value)) for value in range(5)]
    blobs = await asyncio.gather(*(announced(f, data) for data in files * 2))
    assert [blob.id for blob in blobs[:5]] == [blob.id for blob in blobs[5:]]
    rows = await f.rows(t.blobs, t.blobs.c.status == "arriving")
    assert {row.id for row in rows} == {blob.id for blob in blobs}


# --- crashes ----------------------------------------------------------------------------------------------------------

_UPLOAD_IN_A_PROCESS_OF_ITS_OWN = """
import asyncio, json, sys
from pathlib import Path
from tests.contract.test_uploads import announced, send
from tests.support.federation import federation

async def main(directory, place, path):
    data = Path(path).read_bytes()
    async with federation(Path(directory), "a", **json.loads(place)) as f:
        await send(f, await announced(f, data), data)

asyncio.run(main(*sys.argv[1:]))
"""


def upload_until_killed(directory: Path, place: dict[str, Any], path: Path, crash_at: str) -> None:
    import json

    code = [sys.executable, "-c", _UPLOAD_IN_A_PROCESS_OF_ITS_OWN, str(directory), json.dumps(place), str(path)]
    environment = {**os.environ, "LETHE_CRASH_AT": crash_at}
    done = subprocess.run(code, cwd=Path(__file__).parents[2], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("num_floats", "crash_at"),
    [(LARGE, "blob.half-received"), (LARGE, "blob.before-sync:2"), (1000, "blob.before-sync:2")],
    ids=["half", "whole", "small"],
)
async def test_a_coordinator_killed_in_an_upload_goes_on_from_what_it_has(
    place: dict[str, Any], tmp_path: Path, num_floats: int, crash_at: str
) -> None:
    """The first small file is the federation's own."""
    data = tensor_file(tmp_path, num_floats)
    (tmp_path / "data").write_bytes(data)
    await asyncio.to_thread(upload_until_killed, tmp_path / "f", place, tmp_path / "data", crash_at)
    async with reopened(tmp_path / "f", **place) as f:
        (row,) = await f.rows(t.blobs, t.blobs.c.status == "arriving")
        blob = await announced(f, data)
        assert blob.id == row.id
        offset = await part_bytes(f, blob)
        assert len(data) / 2 <= offset <= len(data)
        assert (offset < len(data)) == (crash_at == "blob.half-received")
        await finish(f, blob, await send(f, blob, data, offset))
        assert await stored(f, data) == data


# What only files can show: a write that a crash tore


@pytest.mark.parametrize("num_floats", [1000, 200_000, LARGE], ids=["one segment", "small", "large"])
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
async def test_an_upload_goes_on_after_the_last_whole_segment_of_what_a_crash_tore(
    tmp_path: Path, num_floats: int, share: float
) -> None:
    async with federation(tmp_path / "f", "a") as f:
        data = tensor_file(tmp_path, num_floats)
        blob = await announced(f, data)
        await send(f, blob, data)
        path = tmp_path / "f" / "home" / "blobs" / str(f.id) / name_of(blob)
        os.truncate(path, int(path.stat().st_size * share))
        offset = await part_bytes(f, blob)
        assert offset < len(data) and offset % SEGMENT_BYTES == 0
        await finish(f, blob, await send(f, blob, data, offset))
        assert await stored(f, data) == data


async def test_what_was_damaged_before_the_upload_went_on_is_given_up(tmp_path: Path) -> None:
    async with federation(tmp_path / "f", "a") as f:
        data = tensor_file(tmp_path, num_floats=LARGE)
        blob = await announced(f, data)
        await send(f, blob, data, chunks=stream(data[:-100]))
        path = tmp_path / "f" / "home" / "blobs" / str(f.id) / name_of(blob)
        with path.open("r+b") as file:
            file.seek(1000)
            file.write(b"?")
        assert (await rejection(send(f, blob, data, len(data) - 100))).code == "digest-mismatch"
        assert await is_given_up(f, blob)
        async with f.coordinator.database.read() as connection:
            assert (await connection.execute(sa.select(t.blobs).where(t.blobs.c.id == blob.id))).first() is None
