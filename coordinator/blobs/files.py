"""Blobs as files: `root/<owner>/<name>`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.blobs.disk import (
    THIS_THREAD,
    Batches,
    Disk,
    DiskThreads,
    begin_writing,
    create,
    full_disk_noticed,
    install,
    remove,
    size_of,
    write_all,
)
from coordinator.blobs.port import Missing, Moved, Produce, StorageFull, StoredBytes
from coordinator.crashpoints import crashpoint
from services.core.private_files import make_directory, sync

_NUM_THREADS: Final = 16
_LISTED_AT_ONCE: Final = 1000
Outcomes = list[Exception | None]


@dataclass(frozen=True, slots=True)
class _Small:
    path: Path
    wanted_bytes: int
    produce: Produce


class FileBlobStore:
    """Several processes may share one root on a local file system."""

    def __init__(self, root: Path, reserve_bytes: int = 64 * 2**20, *, is_scratch: bool = False) -> None:
        """`reserve_bytes` of the disk stay free: what would not leave them raises `StorageFull` before it is made.
        `is_scratch`, for experiments: use the caller's thread and do not wait for the disk."""
        self._root = root
        self._reserve_bytes = reserve_bytes
        self._disk: Disk = THIS_THREAD if is_scratch else DiskThreads(_NUM_THREADS)
        self._is_durable = not is_scratch
        self._small_ones: Batches[_Small, None] = Batches(self._disk.run, self._write_small_ones)
        make_directory(root)

    async def size(self, owner: UUID, name: str) -> int | None:
        return size_of(self._path(owner, name))

    async def append(self, owner: UUID, name: str, at: int, wanted_bytes: int, produce: Produce) -> int:
        return await self._disk.run(self._append, self._path(owner, name), at, wanted_bytes, produce)

    async def truncate(self, owner: UUID, name: str, at: int, to: int) -> None:
        await self._disk.run(self._truncate, self._path(owner, name), at, to)

    async def sync(self, owner: UUID, name: str) -> None:
        path = self._path(owner, name)
        try:
            if self._is_durable:
                await self._disk.run(_sync_with_directory, path)
        except FileNotFoundError:
            raise Missing(name) from None

    async def write(self, owner: UUID, name: str, wanted_bytes: int, produce: Produce) -> None:
        await self._small_ones.add(_Small(self._path(owner, name), wanted_bytes, produce))

    async def read(self, owner: UUID, name: str, start: int, end: int) -> bytes:
        try:
            return await self._disk.run(_read, self._path(owner, name), start, end)
        except FileNotFoundError:
            raise Missing(name) from None

    @contextlib.asynccontextmanager
    async def local(self, owner: UUID, names: Iterable[str]) -> AsyncIterator[dict[str, Path]]:
        paths = {name: self._path(owner, name) for name in names}
        for name, path in paths.items():
            if size_of(path) is None:
                raise Missing(name)
        yield paths

    async def adopt(self, owner: UUID, name: str, path: Path) -> None:
        await self._disk.run(self._adopt, path, self._path(owner, name))

    async def delete(self, owner: UUID, *names: str) -> None:
        if names:
            await self._disk.run(remove, [self._path(owner, name) for name in names], self._is_durable)

    async def list(self) -> AsyncIterator[StoredBytes]:
        for directory in await self._disk.run(_directories, self._root):
            files = _files_in(directory)
            while lot := await self._disk.run(_next_of, files):
                for one in lot:
                    yield one

    async def probe(self) -> None:
        await self._disk.run(self._probe)

    async def close(self) -> None:
        await self._disk.close()

    @lru_cache(maxsize=4096)  # noqa: B019  # stores are few and live as long as their process
    def _path(self, owner: UUID, name: str) -> Path:
        return Path(f"{self._root}/{owner}/{name}")

    def _append(self, path: Path, at: int, wanted_bytes: int, produce: Produce) -> int:
        with full_disk_noticed():
            if at == 0:
                self._check_reserve(wanted_bytes)
            with _opened(path, is_new=at == 0) as fd:
                _expect_end(fd, at)
                data = produce()
                write_all(fd, data, at)
                return at + len(data)

    def _truncate(self, path: Path, at: int, to: int) -> None:
        with _opened(path) as fd:
            _expect_end(fd, at)
            os.ftruncate(fd, to)

    def _write_small_ones(self, lot: Sequence[_Small]) -> Outcomes:
        """All are written before the first is synced, so that a file system with a journal writes it once for all."""
        outcomes: Outcomes = []
        written: dict[int, tuple[Path, int]] = {}
        changed: set[Path] = set()
        with contextlib.ExitStack() as files:
            for number, small in enumerate(lot):
                try:
                    written[number] = small.path, self._begin_small(small, files)
                    outcomes.append(None)
                except Exception as error:
                    outcomes.append(error)
            for number, (path, fd) in written.items():
                try:
                    crashpoint("blob.before-sync")
                    with full_disk_noticed():
                        if self._is_durable:
                            os.fsync(fd)
                    changed.add(path.parent)
                except Exception as error:
                    outcomes[number] = error
        if self._is_durable:
            for directory in changed:
                sync(directory)
        return outcomes

    def _begin_small(self, small: _Small, files: contextlib.ExitStack) -> int:
        """Returns the file, which is open as long as `files`."""
        data = small.produce()
        with full_disk_noticed():
            self._check_reserve(small.wanted_bytes)
            fd = files.enter_context(_opened(small.path, is_new=True))
            _expect_end(fd, 0)
            write_all(fd, data, 0)
            if self._is_durable:
                begin_writing(fd)
        return fd

    def _adopt(self, source: Path, path: Path) -> None:
        with full_disk_noticed():
            self._check_reserve(0)
            if self._is_durable:
                sync(source)
            crashpoint("blob.before-rename")
            install(source, path, self._is_durable)
            crashpoint("blob.after-rename")

    def _check_reserve(self, wanted_bytes: int) -> None:
        disk = os.statvfs(self._root)
        free = disk.f_bavail * disk.f_frsize
        if free - wanted_bytes < self._reserve_bytes:
            wish = f"{wanted_bytes} bytes do not fit: {free} are free and {self._reserve_bytes} of them stay reserved"
            raise StorageFull(errno.ENOSPC, wish)

    def _probe(self) -> None:
        with full_disk_noticed():
            self._check_reserve(0)
            with tempfile.TemporaryFile(dir=self._root) as file:
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())


@contextlib.contextmanager
def _opened(path: Path, *, is_new: bool = False) -> Iterator[int]:
    """Locked: of two who write at once, each finds what the other left. Nobody waits behind a dead one."""
    try:
        fd = create(path) if is_new else os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Moved(0) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _expect_end(fd: int, at: int) -> None:
    status = os.fstat(fd)
    stored = status.st_size if status.st_nlink else 0  # deleted meanwhile
    if stored != at or not status.st_nlink:
        raise Moved(stored)


def _read(path: Path, start: int, end: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while start < end and (data := os.pread(fd, end - start, start)):
            pieces.append(data)
            start += len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    finally:
        os.close(fd)


def _sync_with_directory(path: Path) -> None:
    sync(path)
    sync(path.parent)


def _directories(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and _is_uuid(path.name)] if root.exists() else []


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _next_of(files: Iterator[StoredBytes]) -> Sequence[StoredBytes]:
    return tuple(islice(files, _LISTED_AT_ONCE))


def _files_in(directory: Path) -> Iterator[StoredBytes]:
    owner = UUID(directory.name)
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
                yield StoredBytes(owner, entry.name, status.st_size, modified_at)
