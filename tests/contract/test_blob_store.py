"""One contract for every blob store: run on files and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from coordinator.blobs import postgres
from coordinator.blobs.files import FileBlobStore
from coordinator.blobs.port import BlobStore, Complete, Partial, Received, StorageFull, sender_hash
from coordinator.blobs.postgres import PostgresBlobStore
from coordinator.blobs.reception import MOST_HELD_BYTES
from services.core import digests
from services.core.errors import Rejected
from services.tensors import codec
from services.tensors.layout import UPLOADED
from services.tensors.streams import StoredFile

pytestmark = pytest.mark.anyio

OWNER = UUID(int=1)
OTHER_OWNER = UUID(int=2)
SENDER = "client-a"


@pytest.fixture(params=["files", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store lives, in a form that can be handed to another process."""
    return str(tmp_path / "blobs") if request.param == "files" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def store(address: str) -> AsyncIterator[BlobStore]:
    async with opened(address) as (_, store):
        yield store


class opened:
    def __init__(self, address: str) -> None:
        self._address = address

    async def __aenter__(self) -> tuple[str, BlobStore]:
        if not self._address.startswith("postgresql"):
            self._store: BlobStore = FileBlobStore(Path(self._address))
            return self._address, self._store
        self._engine = create_async_engine(self._address)
        async with self._engine.begin() as connection:
            await connection.run_sync(postgres.metadata.create_all)
        self._store = PostgresBlobStore(self._engine)
        return self._address, self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()
        if self._address.startswith("postgresql"):
            await self._engine.dispose()


def tensor_file(directory: Path, num_floats: int = 1000, value: float = 0.5) -> bytes:
    path = directory / "made.safetensors"
    codec.write_file(path, {"weight": np.full(num_floats, value, np.float32)})
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


async def put(store: BlobStore, data: bytes, *, owner: UUID = OWNER, sender: str = SENDER) -> str:
    digest = digests.of_bytes(data)
    received = await store.receive(owner, digest, sender=sender, offset=0, total=len(data), chunks=stream(data))
    assert isinstance(received, Complete)
    return digest


async def read(store: BlobStore, digest: str, start: int = 0, end: int | None = None, owner: UUID = OWNER) -> bytes:
    return b"".join([piece async for piece in store.open(owner, digest, start, end)])


async def rejection(work: object) -> Rejected:
    with pytest.raises(Rejected) as caught:
        await work  # type: ignore[misc]
    return caught.value


async def test_an_upload_becomes_a_blob_that_reads_back_the_same(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest = digests.of_bytes(data)
    received = await store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=stream(data))
    assert isinstance(received, Complete)
    assert (received.num_bytes, received.existed, received.inspection.finite) == (len(data), False, True)
    assert [tensor.name for tensor in received.inspection.layout.tensors] == ["weight"]
    assert await store.stat(OWNER, digest) == len(data)
    assert await read(store, digest) == data
    assert await store.part_size(OWNER, digest, SENDER) is None


async def test_one_huge_chunk_is_as_good_as_many_small_ones(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest = digests.of_bytes(data)
    chunks = stream(data, size=len(data))
    assert isinstance(
        await store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=chunks), Complete
    )
    assert await read(store, digest) == data


async def test_nan_is_reported_by_the_inspection(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, value=float("nan"))
    received = await store.receive(
        OWNER, digests.of_bytes(data), sender=SENDER, offset=0, total=len(data), chunks=stream(data)
    )
    assert isinstance(received, Complete)
    assert not received.inspection.finite


@pytest.mark.parametrize("num_floats", [1000, 400_000], ids=["small", "large"])
async def test_naming_a_digest_that_exists_does_not_stand_for_its_bytes(
    store: BlobStore, tmp_path: Path, num_floats: int
) -> None:
    data = tensor_file(tmp_path, num_floats)
    digest, total = await put(store, data), len(data)
    others = tensor_file(tmp_path, num_floats, value=1.5)
    wrong = store.receive(OWNER, digest, sender="b", offset=0, total=total, chunks=stream(others))
    assert (await rejection(wrong)).code == "digest-mismatch"
    again = await store.receive(OWNER, digest, sender="b", offset=0, total=total, chunks=stream(data))
    assert isinstance(again, Complete)
    assert again.existed
    assert await store.part_size(OWNER, digest, "b") is None
    assert await read(store, digest) == data


async def test_a_file_of_very_many_tensors_is_read_back_and_checked(store: BlobStore, tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    codec.write_file(path, {f"tensor-{number}": np.full(10, number, np.float32) for number in range(6000)})
    data = path.read_bytes()
    digest = await put(store, data)
    assert await read(store, digest) == data
    too_many = {f"tensor-{number}": np.zeros(0, np.float32) for number in range(UPLOADED.tensors + 1)}
    codec.write_file(path, too_many)
    with pytest.raises(Rejected, match="tensors"):
        await put(store, path.read_bytes())
    examined = await store.adopt(OWNER, path)  # ours, and nobody else's
    assert len(examined.inspection.layout.tensors) == len(too_many)


async def test_uploads_that_find_no_memory_go_on_in_small_pieces(store: BlobStore, tmp_path: Path) -> None:
    """As many slow ones as fill it, and one more that is not kept waiting."""
    data = tensor_file(tmp_path, num_floats=200_000)
    slow = tensor_file(tmp_path, num_floats=200_000, value=1.5)
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def trickle() -> AsyncIterator[bytes]:
        yield slow[:1]
        begun.release()
        await go_on.wait()
        raise ConnectionResetError("the client is gone")

    async def send_slowly(number: int) -> None:
        sender, total = f"slow-{number}", len(slow)
        with pytest.raises(ConnectionResetError):
            await store.receive(OWNER, digests.of_bytes(slow), sender=sender, offset=0, total=total, chunks=trickle())
        assert await store.part_size(OWNER, digests.of_bytes(slow), sender) == 1

    num_slow = MOST_HELD_BYTES // len(slow) + 1
    async with asyncio.TaskGroup() as sending:
        for number in range(num_slow):
            sending.create_task(send_slowly(number))
        for _ in range(num_slow):
            await begun.acquire()
        assert await read(store, await put(store, data)) == data
        go_on.set()


async def test_owners_do_not_see_each_others_blobs(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    digest = await put(store, data)
    assert await store.stat(OTHER_OWNER, digest) is None
    await put(store, data, owner=OTHER_OWNER)
    await store.delete(OWNER, digest)
    assert await store.stat(OWNER, digest) is None
    assert await read(store, digest, owner=OTHER_OWNER) == data


async def test_what_arrived_before_the_client_vanished_stays(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest, half = digests.of_bytes(data), len(data) // 2 + 1
    with pytest.raises(ConnectionResetError):
        await store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=broken_stream(data[:half]))
    assert await store.part_size(OWNER, digest, SENDER) == half
    assert await store.stat(OWNER, digest) is None
    received = await store.receive(
        OWNER, digest, sender=SENDER, offset=half, total=len(data), chunks=stream(data[half:])
    )
    assert isinstance(received, Complete)
    assert received.inspection.finite
    assert await read(store, digest) == data


async def test_an_upload_may_come_in_many_requests(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    digest = digests.of_bytes(data)
    received: Received = Partial(0)
    for start in range(0, len(data), 1000):
        received = await store.receive(
            OWNER, digest, sender=SENDER, offset=start, total=len(data), chunks=stream(data[start : start + 1000])
        )
        if start + 1000 < len(data):
            assert received == Partial(start + 1000)
    assert isinstance(received, Complete)
    assert await read(store, digest, 990, 2010) == data[990:2010]


async def test_a_whole_part_that_was_never_checked_completes_without_more_bytes(
    store: BlobStore, tmp_path: Path
) -> None:
    data = tensor_file(tmp_path)
    digest = digests.of_bytes(data)
    with pytest.raises(ConnectionResetError):
        await store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=broken_stream(data))
    received = await store.receive(OWNER, digest, sender=SENDER, offset=len(data), total=len(data), chunks=stream(b""))
    assert isinstance(received, Complete)


@pytest.mark.parametrize("stored", [0, 500])
async def test_an_upload_that_does_not_continue_the_part_is_rejected(
    store: BlobStore, tmp_path: Path, stored: int
) -> None:
    data = tensor_file(tmp_path)
    digest = digests.of_bytes(data)
    if stored:
        await store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=stream(data[:stored]))
    error = await rejection(
        store.receive(OWNER, digest, sender=SENDER, offset=700, total=len(data), chunks=stream(data[700:]))
    )
    assert (error.code, error.extra["offset"]) == ("upload-offset-mismatch", stored)
    assert await store.part_size(OWNER, digest, SENDER) == (stored or None)


async def test_senders_do_not_share_a_part(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    digest = digests.of_bytes(data)
    await store.receive(OWNER, digest, sender="a", offset=0, total=len(data), chunks=stream(b"poison"))
    assert await store.part_size(OWNER, digest, "b") is None
    await put(store, data, sender="b")
    assert await read(store, digest) == data


async def test_wrong_bytes_are_rejected_and_dropped(store: BlobStore, tmp_path: Path) -> None:
    data, other = tensor_file(tmp_path), tensor_file(tmp_path, value=2.0)
    digest = digests.of_bytes(data)
    error = await rejection(
        store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(other), chunks=stream(other))
    )
    assert (error.code, error.extra["actual"]) == ("digest-mismatch", digests.of_bytes(other))
    assert await store.part_size(OWNER, digest, SENDER) is None
    await put(store, data)


@pytest.mark.parametrize("data", [b"", b"\x80\x04pickle" + bytes(100), bytes(4096), b"{}"])
async def test_what_is_not_safetensors_is_rejected_and_dropped(store: BlobStore, data: bytes) -> None:
    digest = digests.of_bytes(data)
    error = await rejection(store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=stream(data)))
    assert error.code == "not-safetensors"
    assert await store.part_size(OWNER, digest, SENDER) is None
    assert await store.stat(OWNER, digest) is None


async def test_more_bytes_than_announced_are_rejected(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    error = await rejection(
        store.receive(
            OWNER, digests.of_bytes(data), sender=SENDER, offset=0, total=len(data), chunks=stream(data + b"x")
        )
    )
    assert error.code == "too-large"


async def test_two_uploads_of_the_same_part_at_once_end_in_one_whole_blob(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest = digests.of_bytes(data)
    uploads = (
        store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=stream(data)) for _ in range(4)
    )
    outcomes = await asyncio.gather(*uploads, return_exceptions=True)
    assert sum(isinstance(outcome, Complete) for outcome in outcomes) >= 1
    for outcome in outcomes:
        assert isinstance(outcome, Complete) or (
            isinstance(outcome, Rejected) and outcome.code == "upload-offset-mismatch"
        )
    assert await read(store, digest) == data


async def test_an_upload_does_not_wait_behind_one_that_hangs(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest, goes_on, is_stuck = digests.of_bytes(data), asyncio.Event(), asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        yield data[:-4]
        is_stuck.set()
        await goes_on.wait()
        yield data[-4:]

    first = asyncio.create_task(
        store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=hanging())
    )
    await is_stuck.wait()
    offset = await store.part_size(OWNER, digest, SENDER) or 0
    assert offset
    received = await store.receive(
        OWNER, digest, sender=SENDER, offset=offset, total=len(data), chunks=stream(data[offset:])
    )
    assert isinstance(received, Complete)
    goes_on.set()
    assert (await rejection(first)).code == "upload-offset-mismatch"
    assert await read(store, digest) == data


async def test_different_senders_of_equal_bytes_at_once_all_succeed(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=300_000)
    names = [f"client-{number}" for number in range(5)]
    found = await asyncio.gather(*(put(store, data, sender=name) for name in names))
    assert set(found) == {digests.of_bytes(data)}
    assert [await store.part_size(OWNER, found[0], name) for name in names] == [None] * 5
    assert [blob.num_bytes async for blob in store.list(OWNER)] == [len(data)]


async def test_a_cancelled_upload_leaves_a_part_that_can_go_on(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest, is_stuck = digests.of_bytes(data), asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        yield data[:-1]
        is_stuck.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(store.receive(OWNER, digest, sender=SENDER, offset=0, total=len(data), chunks=hanging()))
    await is_stuck.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    offset = await store.part_size(OWNER, digest, SENDER) or 0
    received = await store.receive(
        OWNER, digest, sender=SENDER, offset=offset, total=len(data), chunks=stream(data[offset:])
    )
    assert isinstance(received, Complete)
    assert await read(store, digest) == data


@pytest.mark.parametrize(("start", "end"), [(0, 1), (5, None), (100, 100), (1_048_570, 1_048_590), (0, None)])
async def test_a_range_is_read_exactly(store: BlobStore, tmp_path: Path, start: int, end: int | None) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest = await put(store, data)
    assert await read(store, digest, start, end) == data[start:end]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (0, 10**9), (10**9, None), (20, 10)])
async def test_a_range_outside_the_blob_is_rejected(
    store: BlobStore, tmp_path: Path, start: int, end: int | None
) -> None:
    digest = await put(store, tensor_file(tmp_path))
    assert (await rejection(read(store, digest, start, end))).code == "range-not-satisfiable"


async def test_a_blob_that_is_not_there_cannot_be_read(store: BlobStore) -> None:
    digest = digests.of_bytes(b"nothing")
    assert await store.stat(OWNER, digest) is None
    assert (await rejection(read(store, digest))).code == "not-found"
    with pytest.raises(Rejected, match="not-found"):
        async with store.local(OWNER, [digest]):
            pass


async def test_a_name_that_is_no_digest_names_nothing(store: BlobStore) -> None:
    assert (await rejection(store.stat(OWNER, "sha256:../../etc/passwd"))).code == "not-found"


async def test_kernels_read_blobs_as_files(store: BlobStore, tmp_path: Path) -> None:
    data = [tensor_file(tmp_path, num_floats=400_000, value=value) for value in (1.0, 2.0)]
    names = [await put(store, content) for content in data]
    async with store.local(OWNER, names) as paths:
        assert [paths[name].read_bytes() for name in names] == data
        assert float(codec.read(StoredFile(paths[names[1]]))["weight"][0]) == 2.0
    if isinstance(store, PostgresBlobStore):
        assert not any(path.exists() for path in paths.values())


async def test_a_kernels_output_is_adopted_once(store: BlobStore, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=700_000)
    digest, made = "", tmp_path / "output"
    for _ in range(2):
        made.write_bytes(data)
        digest, inspection, num_bytes = await store.adopt(OWNER, made)
        assert (digest, num_bytes, inspection.finite) == (digests.of_bytes(data), len(data), True)
        assert not made.exists()
    assert await read(store, digest) == data
    assert [blob.digest async for blob in store.list(OWNER)] == [digest]


async def test_a_file_that_is_not_safetensors_is_not_adopted(store: BlobStore, tmp_path: Path) -> None:
    made = tmp_path / "output"
    made.write_bytes(b"no tensors")
    assert (await rejection(store.adopt(OWNER, made))).code == "not-safetensors"


async def test_list_names_every_complete_blob_of_the_owner(store: BlobStore, tmp_path: Path) -> None:
    data = [tensor_file(tmp_path, value=float(value)) for value in range(5)]
    names = {await put(store, content) for content in data}
    unfinished = tensor_file(tmp_path, value=9.0)
    await store.receive(
        OWNER,
        digests.of_bytes(unfinished),
        sender=SENDER,
        offset=0,
        total=len(unfinished),
        chunks=stream(unfinished[:9]),
    )
    listed = [blob async for blob in store.list(OWNER)]
    assert {blob.digest for blob in listed} == names
    assert all(blob.modified_at.tzinfo is not None and blob.num_bytes == len(data[0]) for blob in listed)
    assert [blob async for blob in store.list(OTHER_OWNER)] == []


async def test_parts_are_listed_and_dropped_by_their_sender(store: BlobStore) -> None:
    digest = digests.of_bytes(b"whatever")
    for owner, sender in ((OWNER, SENDER), (OWNER, "another"), (OTHER_OWNER, SENDER)):
        await store.receive(owner, digest, sender=sender, offset=0, total=100, chunks=stream(b"12345"))
    mine, other = (sender_hash(sender) for sender in (SENDER, "another"))
    expected = {(OWNER, mine), (OWNER, other), (OTHER_OWNER, mine)}
    assert {(part.owner, part.sender) for part in await store.parts() if part.num_bytes == 5} == expected
    await store.drop_parts(OWNER, SENDER)
    assert {(part.owner, part.sender) for part in await store.parts()} == expected - {(OWNER, mine)}
    assert await store.sweep_parts(0, OWNER) == 1
    assert [part.owner for part in await store.parts()] == [OTHER_OWNER]


async def test_old_parts_are_swept_and_young_ones_stay(store: BlobStore, tmp_path: Path) -> None:
    digest = digests.of_bytes(b"whatever")
    await store.receive(OWNER, digest, sender=SENDER, offset=0, total=100, chunks=stream(b"123456789"[:5]))
    kept = await put(store, tensor_file(tmp_path))
    assert await store.sweep_parts(older_than_s=3600) == 0
    assert await store.part_size(OWNER, digest, SENDER) == 5
    assert await store.sweep_parts(older_than_s=0) == 1
    assert await store.part_size(OWNER, digest, SENDER) is None
    assert await store.stat(OWNER, kept) is not None


async def test_deleting_twice_is_harmless(store: BlobStore, tmp_path: Path) -> None:
    digest = await put(store, tensor_file(tmp_path))
    await store.delete(OWNER, digest)
    await store.delete(OWNER, digest)
    assert await store.stat(OWNER, digest) is None


async def test_a_store_with_room_passes_the_probe(store: BlobStore) -> None:
    await store.probe()


_UPLOAD_IN_A_PROCESS_OF_ITS_OWN = """
import asyncio, sys
from pathlib import Path
from tests.contract.test_blob_store import OWNER, SENDER, opened, stream
from services.core import digests

async def main(address, path):
    data = Path(path).read_bytes()
    async with opened(address) as (_, store):
        await store.receive(
            OWNER, digests.of_bytes(data), sender=SENDER, offset=0, total=len(data), chunks=stream(data)
        )

asyncio.run(main(*sys.argv[1:]))
"""


def upload_until_killed(address: str, path: Path, crash_at: str) -> None:
    code = [sys.executable, "-c", _UPLOAD_IN_A_PROCESS_OF_ITS_OWN, address, str(path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(code, cwd=root, env={**os.environ, "LETHE_CRASH_AT": crash_at}, check=False)
    assert done.returncode == -signal.SIGKILL


async def test_a_store_killed_at_half_an_upload_goes_on_from_there(address: str, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, num_floats=1_500_000)
    (tmp_path / "data").write_bytes(data)
    await asyncio.to_thread(upload_until_killed, address, tmp_path / "data", "blob.half-received")
    digest = digests.of_bytes(data)
    async with opened(address) as (_, store):
        offset = await store.part_size(OWNER, digest, SENDER)
        assert offset is not None
        assert len(data) / 2 <= offset < len(data)
        received = await store.receive(
            OWNER, digest, sender=SENDER, offset=offset, total=len(data), chunks=stream(data[offset:])
        )
        assert isinstance(received, Complete)
        assert await read(store, digest) == data


async def test_a_store_killed_before_the_rename_has_the_part_and_not_the_blob(address: str, tmp_path: Path) -> None:
    data = tensor_file(tmp_path, 300_000)
    (tmp_path / "data").write_bytes(data)
    await asyncio.to_thread(upload_until_killed, address, tmp_path / "data", "blob.before-rename")
    digest = digests.of_bytes(data)
    async with opened(address) as (_, store):
        assert await store.stat(OWNER, digest) is None
        assert await store.part_size(OWNER, digest, SENDER) == len(data)
        received = await store.receive(
            OWNER, digest, sender=SENDER, offset=len(data), total=len(data), chunks=stream(b"")
        )
        assert isinstance(received, Complete)


async def test_a_store_killed_after_the_rename_has_the_blob(address: str, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    (tmp_path / "data").write_bytes(data)
    await asyncio.to_thread(upload_until_killed, address, tmp_path / "data", "blob.after-rename")
    async with opened(address) as (_, store):
        assert await read(store, digests.of_bytes(data)) == data


async def test_a_store_killed_before_a_small_blob_is_there_takes_it_again(address: str, tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    (tmp_path / "data").write_bytes(data)
    await asyncio.to_thread(upload_until_killed, address, tmp_path / "data", "blob.before-rename")
    digest = digests.of_bytes(data)
    async with opened(address) as (_, store):
        assert await store.stat(OWNER, digest) is None
        offset = await store.part_size(OWNER, digest, SENDER) or 0
        received = await store.receive(
            OWNER, digest, sender=SENDER, offset=offset, total=len(data), chunks=stream(data[offset:])
        )
        assert isinstance(received, Complete)
        assert await read(store, digest) == data


# What only the file store can show


async def test_uploads_stop_while_the_reserve_is_all_that_is_left(tmp_path: Path) -> None:
    data = tensor_file(tmp_path)
    made = tmp_path / "output"
    made.write_bytes(data)
    store = FileBlobStore(tmp_path / "blobs", reserve_bytes=2**60)
    with pytest.raises(StorageFull):
        await put(store, data)
    with pytest.raises(StorageFull):
        await store.adopt(OWNER, made)
    with pytest.raises(StorageFull):
        await store.probe()
    assert made.exists()
    await store.close()


async def test_a_small_upload_that_the_disk_does_not_take_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    data, store = tensor_file(tmp_path), FileBlobStore(tmp_path / "blobs")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(StorageFull):
            await put(store, data)
    assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    await put(store, data)
    assert await read(store, digests.of_bytes(data)) == data
    await store.close()


async def test_a_disk_that_fills_up_in_the_middle_is_storage_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if (await asyncio.to_thread(subprocess.run, mount, capture_output=True, check=False)).returncode:
        pytest.skip("mounting a small disk needs privileges")
    try:
        store = FileBlobStore(disk / "blobs", reserve_bytes=-(2**30))  # promises room that is not there
        data = tensor_file(tmp_path, num_floats=700_000)
        with pytest.raises(StorageFull):
            await put(store, data)
        assert await store.part_size(OWNER, digests.of_bytes(data), SENDER) is None
        small = tensor_file(tmp_path)
        assert await read(store, await put(store, small)) == small
        await store.close()
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(disk)], check=True)


async def test_a_blob_is_never_written_on_the_event_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def recorded(real: Callable[..., object]) -> Callable[..., object]:
        def record(*args: object) -> object:
            threads.add(threading.get_ident())
            return real(*args)

        return record

    for name in ("pwrite", "fsync", "rename", "pread"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name)))
    store = FileBlobStore(tmp_path / "blobs")
    data = tensor_file(tmp_path)
    assert await read(store, await put(store, data)) == data
    assert threads
    assert threading.get_ident() not in threads
    await store.close()
