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

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from coordinator.blobs import postgres
from coordinator.blobs.files import FileBlobStore
from coordinator.blobs.port import BlobStore, Missing, Moved, StorageFull
from coordinator.blobs.postgres import CHUNK_BYTES, PostgresBlobStore

pytestmark = pytest.mark.anyio

OWNER, OTHER_OWNER = UUID(int=1), UUID(int=2)
NAME, OTHER = UUID(int=7).hex, UUID(int=8).hex
LARGE = bytes(range(256)) * (CHUNK_BYTES // 256) * 2 + b"and a rest"
"""More than two chunks of the one that has chunks."""


@pytest.fixture(params=["files", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store lives, in a form that can be handed to another process."""
    return str(tmp_path / "blobs") if request.param == "files" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def store(address: str) -> AsyncIterator[BlobStore]:
    async with opened(address) as store:
        yield store


class opened:
    def __init__(self, address: str) -> None:
        self._address = address

    async def __aenter__(self) -> BlobStore:
        if not self._address.startswith("postgresql"):
            self._store: BlobStore = FileBlobStore(Path(self._address))
            return self._store
        self._engine = create_async_engine(self._address)
        async with self._engine.begin() as connection:
            await connection.run_sync(postgres.metadata.create_all)
        self._store = PostgresBlobStore(self._engine)
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()
        if self._address.startswith("postgresql"):
            await self._engine.dispose()


async def append(store: BlobStore, at: int, data: bytes, name: str = NAME) -> int:
    return await store.append(OWNER, name, at, len(data), lambda: data)


async def write(store: BlobStore, data: bytes, name: str = NAME, owner: UUID = OWNER) -> None:
    await store.write(owner, name, len(data), lambda: data)


async def read(store: BlobStore, name: str = NAME, owner: UUID = OWNER) -> bytes:
    return await store.read(owner, name, 0, 1 << 30)


async def listed(store: BlobStore) -> dict[tuple[UUID, str], int]:
    return {(one.owner, one.name): one.num_bytes async for one in store.list()}


async def test_what_was_appended_piece_by_piece_reads_back_in_order(store: BlobStore) -> None:
    at = 0
    for piece in (b"first", LARGE, b"last"):
        at = await append(store, at, piece)
    await store.sync(OWNER, NAME)
    whole = b"first" + LARGE + b"last"
    assert at == len(whole) == await store.size(OWNER, NAME)
    assert await read(store) == whole


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (5, 5), (CHUNK_BYTES - 3, CHUNK_BYTES + 3), (0, 10**9), (10**9, 10**9 + 1), (20, 10)]
)
async def test_a_range_is_read_as_far_as_there_are_bytes(store: BlobStore, start: int, end: int) -> None:
    await append(store, await append(store, 0, LARGE[:100]), LARGE[100:])
    assert await store.read(OWNER, NAME, start, end) == LARGE[start:end]


async def test_small_ones_that_come_together_are_all_written(store: BlobStore) -> None:
    names = [UUID(int=number).hex for number in range(100, 140)]
    await asyncio.gather(*(write(store, name.encode(), name) for name in names))
    assert [await read(store, name) for name in names] == [name.encode() for name in names]


async def test_one_that_breaks_breaks_no_other_that_came_with_it(store: BlobStore) -> None:
    def broken() -> bytes:
        raise ValueError("not what was announced")

    outcomes = await asyncio.gather(write(store, b"good"), store.write(OWNER, OTHER, 4, broken), return_exceptions=True)
    assert outcomes[0] is None and isinstance(outcomes[1], ValueError)
    assert await read(store) == b"good"
    assert await store.size(OWNER, OTHER) is None


async def test_what_cannot_be_made_leaves_what_was_there(store: BlobStore) -> None:
    def broken() -> bytes:
        raise ValueError("no more")

    await append(store, 0, b"begun")
    with pytest.raises(ValueError, match="no more"):
        await store.append(OWNER, NAME, 5, 4, broken)
    assert await read(store) == b"begun"


@pytest.mark.parametrize("at", [0, 3, 9])
async def test_who_does_not_go_on_at_the_end_is_told_where_that_is(store: BlobStore, at: int) -> None:
    await append(store, 0, b"begun")
    with pytest.raises(Moved) as moved:
        await append(store, at, b"more")
    assert moved.value.stored == 5
    assert await read(store) == b"begun"


async def test_a_name_is_written_once(store: BlobStore) -> None:
    await write(store, b"first")
    with pytest.raises(Moved) as moved:
        await write(store, b"second")
    assert (moved.value.stored, await read(store)) == (5, b"first")


async def test_nobody_goes_on_with_what_is_not_there(store: BlobStore) -> None:
    with pytest.raises(Moved) as moved:
        await append(store, 5, b"more")
    assert moved.value.stored == 0
    with pytest.raises(Moved):
        await store.truncate(OWNER, NAME, 5, 3)
    assert await store.size(OWNER, NAME) is None


async def test_of_two_who_append_at_once_one_goes_on(store: BlobStore) -> None:
    await append(store, 0, b"begun")
    outcomes = await asyncio.gather(*(append(store, 5, word) for word in (b" one", b" two")), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Moved", "int"]
    assert await read(store) in (b"begun one", b"begun two")


async def test_what_is_not_there_is_missing(store: BlobStore) -> None:
    assert await store.size(OWNER, NAME) is None
    with pytest.raises(Missing):
        await read(store)
    with pytest.raises(Missing):
        await store.sync(OWNER, NAME)
    await write(store, b"there", OTHER)
    with pytest.raises(Missing) as missing:
        async with store.local(OWNER, [OTHER, NAME]):
            pass
    assert missing.value.filename == NAME


async def test_owners_do_not_see_each_others_bytes(store: BlobStore) -> None:
    await write(store, b"mine")
    assert await store.size(OTHER_OWNER, NAME) is None
    await write(store, b"theirs", owner=OTHER_OWNER)
    await store.delete(OWNER, NAME)
    assert await store.size(OWNER, NAME) is None
    assert await read(store, owner=OTHER_OWNER) == b"theirs"


async def test_deleting_takes_all_that_are_named_and_may_be_repeated(store: BlobStore) -> None:
    await write(store, b"one")
    await append(store, await append(store, 0, b"half", OTHER), LARGE, OTHER)
    for _ in range(2):
        await store.delete(OWNER, NAME, OTHER)
    await store.delete(OWNER)
    assert await listed(store) == {}
    with pytest.raises(Moved):
        await append(store, 4, b"more", OTHER)


async def test_kernels_read_them_as_files(store: BlobStore) -> None:
    await write(store, b"small")
    await append(store, await append(store, 0, b"large", OTHER), LARGE, OTHER)
    async with store.local(OWNER, [NAME, OTHER]) as paths:
        assert {name: path.read_bytes() for name, path in paths.items()} == {NAME: b"small", OTHER: b"large" + LARGE}
    if isinstance(store, PostgresBlobStore):
        assert not any(path.exists() for path in paths.values())


async def test_a_file_is_adopted_and_gone_from_where_it_was(store: BlobStore, tmp_path: Path) -> None:
    made = tmp_path / "output"
    made.write_bytes(LARGE)
    await store.adopt(OWNER, NAME, made)
    assert not made.exists()
    assert await read(store) == LARGE


async def test_everything_is_listed_also_what_is_not_finished(store: BlobStore) -> None:
    assert await listed(store) == {}
    await write(store, b"whole")
    await append(store, 0, b"half", OTHER)
    await write(store, b"another's", owner=OTHER_OWNER)
    assert await listed(store) == {(OWNER, NAME): 5, (OWNER, OTHER): 4, (OTHER_OWNER, NAME): 9}
    assert all([one.modified_at.tzinfo is not None async for one in store.list()])


async def test_a_store_with_room_passes_the_probe(store: BlobStore) -> None:
    await store.probe()
    assert await listed(store) == {}


_WRITE_IN_A_PROCESS_OF_ITS_OWN = """
import asyncio, sys
from pathlib import Path
from tests.contract.test_blob_store import NAME, OWNER, opened, write

async def main(address, how, path):
    async with opened(address) as store:
        await (write(store, b"small") if how == "write" else store.adopt(OWNER, NAME, Path(path)))

asyncio.run(main(*sys.argv[1:]))
"""


def killed(address: str, how: str, path: Path, crash_at: str) -> None:
    code = [sys.executable, "-c", _WRITE_IN_A_PROCESS_OF_ITS_OWN, address, how, str(path)]
    environment = {**os.environ, "LETHE_CRASH_AT": crash_at}
    done = subprocess.run(code, cwd=Path(__file__).parents[2], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


async def test_what_a_killed_process_wrote_is_listed_and_can_be_deleted(address: str, tmp_path: Path) -> None:
    await asyncio.to_thread(killed, address, "write", tmp_path, "blob.before-sync")
    async with opened(address) as store:
        assert await listed(store) == {(OWNER, NAME): 5}
        await store.delete(OWNER, NAME)
        await write(store, b"small")


# What only the file store can show


@pytest.mark.parametrize(("crash_at", "is_there"), [("blob.before-rename", False), ("blob.after-rename", True)])
async def test_a_file_is_adopted_whole_or_not_at_all(tmp_path: Path, crash_at: str, is_there: bool) -> None:
    made = tmp_path / "output"
    made.write_bytes(LARGE)
    await asyncio.to_thread(killed, str(tmp_path / "blobs"), "adopt", made, crash_at)
    async with opened(str(tmp_path / "blobs")) as store:
        assert await store.size(OWNER, NAME) == (len(LARGE) if is_there else None)
        assert made.exists() is not is_there


async def test_what_a_crash_left_half_written_is_cut_off(tmp_path: Path) -> None:
    async with opened(str(tmp_path / "blobs")) as store:
        await append(store, 0, b"whole and torn")
        with pytest.raises(Moved):
            await store.truncate(OWNER, NAME, 5, 3)
        await store.truncate(OWNER, NAME, 14, 5)
        assert await append(store, 5, b" again") == 11
        assert await read(store) == b"whole again"


async def test_writing_stops_while_the_reserve_is_all_that_is_left(tmp_path: Path) -> None:
    made = tmp_path / "output"
    made.write_bytes(b"made")
    store = FileBlobStore(tmp_path / "blobs", reserve_bytes=2**60)
    for attempt in (append(store, 0, b"x"), write(store, b"x"), store.adopt(OWNER, NAME, made), store.probe()):
        with pytest.raises(StorageFull):
            await attempt
    assert made.exists()
    assert await listed(store) == {}
    await store.close()


async def test_a_small_one_that_the_disk_does_not_take_can_be_deleted_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    store = FileBlobStore(tmp_path / "blobs")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(StorageFull):
            await write(store, b"small")
    await store.delete(OWNER, NAME)
    await write(store, b"small")
    assert await read(store) == b"small"
    await store.close()


async def test_a_disk_that_fills_up_in_the_middle_is_storage_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if (await asyncio.to_thread(subprocess.run, mount, capture_output=True, check=False)).returncode:
        pytest.skip("mounting a small disk needs privileges")
    try:
        store = FileBlobStore(disk / "blobs", reserve_bytes=-(2**30))  # promises room that is not there
        with pytest.raises(StorageFull):
            await append(store, 0, LARGE)
        with pytest.raises(StorageFull):
            await write(store, LARGE, OTHER)
        await store.delete(OWNER, NAME, OTHER)
        await write(store, b"small")
        assert await read(store) == b"small"
        await store.close()
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(disk)], check=True)


async def test_nothing_is_written_or_read_on_the_event_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def recorded(real: Callable[..., object]) -> Callable[..., object]:
        def record(*args: object) -> object:
            threads.add(threading.get_ident())
            return real(*args)

        return record

    for name in ("pwrite", "fsync", "ftruncate", "pread"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name)))
    store = FileBlobStore(tmp_path / "blobs")
    await write(store, b"small")
    await append(store, await append(store, 0, b"large", OTHER), LARGE, OTHER)
    await store.truncate(OWNER, OTHER, 5 + len(LARGE), 5)
    await store.sync(OWNER, OTHER)
    assert await read(store) + await read(store, OTHER) == b"smalllarge"
    assert threads
    assert threading.get_ident() not in threads
    await store.close()
