"""Blobs as files: `root/<owner>/<hex>`, unfinished uploads in `root/parts/<owner>/<hex>.<sender>`.

A blob appears by rename after its bytes are on the disk, so a file under its final name is always whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.blobs.disk import (
    READ_BYTES,
    THIS_THREAD,
    Batches,
    Disk,
    DiskThreads,
    begin_writing,
    create,
    full_disk_noticed,
    install,
    move,
    remove,
    size_of,
    sync,
    sync_directory,
    write_all,
)
from coordinator.blobs.port import (
    Complete,
    Examined,
    Received,
    StorageFull,
    StoredBlob,
    StoredPart,
    sender_hash,
)
from coordinator.blobs.reception import (
    Check,
    Memory,
    checked_range,
    digest_mismatch,
    examine,
    hex_of,
    not_found,
    offset_mismatch,
    receive_into,
    taken,
)
from coordinator.crashpoints import crashpoint
from services.core.errors import InvariantBroken
from services.core.private_files import FILE_MODE, make_directory

PIECE_BYTES: Final = 2**20
"""Each piece is one trip to a thread; with smaller ones the trips cost more CPU than the hashing."""
_NUM_THREADS: Final = 16


@dataclass(frozen=True)
class Arriving:
    """An upload: where it ends up, where its parts wait, what it claims to be."""

    path: Path
    part_path: Path
    digest: str
    offset: int
    total: int
    body: bytes = b""
    """All of it, if it is small and there."""

    @cached_property
    def unfinished(self) -> Path:
        """Where a small body is written before it has its name."""
        return Path(f"{self.part_path}.{os.urandom(8).hex()}")


class FileBlobStore:
    """Several processes may share one root on a local file system."""

    def __init__(self, root: Path, reserve_bytes: int = 64 * 2**20, *, is_scratch: bool = False) -> None:
        """`reserve_bytes` of the disk stay free: what would not leave them raises `StorageFull` before it is read.
        `is_scratch`, for experiments: use the caller's thread and do not wait for the disk."""
        self._root = root
        self._parts = root / "parts"
        self._reserve_bytes = reserve_bytes
        self._disk: Disk = THIS_THREAD if is_scratch else DiskThreads(_NUM_THREADS)
        self._is_durable = not is_scratch
        self._memory = Memory()
        self._small_ones: Batches[Arriving, Received] = Batches(self._disk, self._receive_small)
        make_directory(self._parts)

    async def stat(self, owner: UUID, digest: str) -> int | None:
        return size_of(self._path(owner, digest))

    async def part_size(self, owner: UUID, digest: str, sender: str) -> int | None:
        return await self._disk.run(size_of, self._part_path(owner, digest, sender)) or None

    async def receive(
        self, owner: UUID, digest: str, *, sender: str, offset: int, total: int, chunks: AsyncIterable[bytes]
    ) -> Received:
        arriving = Arriving(self._path(owner, digest), self._part_path(owner, digest, sender), digest, offset, total)
        if offset == 0 and total <= PIECE_BYTES:
            with self._memory.lent(total) as is_lent:
                if is_lent:
                    body, chunks = await taken(chunks, total)
                    if len(body) == total:
                        return await self._small_ones.add(replace(arriving, body=body))
        part = await self._disk.run(self._open_part, arriving)
        try:
            return await receive_into(
                part,
                self._memory,
                digest=arriving.digest,
                offset=arriving.offset,
                total=arriving.total,
                chunks=chunks,
                piece_bytes=PIECE_BYTES,
            )
        finally:
            self._disk.submit(part.close)

    def _receive_small(self, bodies: Sequence[Arriving]) -> list[Received | Exception]:
        """Bodies that are all there: one trip to a thread for all that have gathered. They are written before the first
        is synced, so that a file system with a journal writes it once for all of them."""
        outcomes: list[Complete | Exception] = []
        written: dict[int, tuple[Arriving, int]] = {}
        changed: set[Path] = set()
        with contextlib.ExitStack() as files:
            for number, arriving in enumerate(bodies):
                try:
                    outcome, is_new = self._checked(arriving), not arriving.path.exists()
                    if is_new:
                        written[number] = arriving, self._write_small(arriving, files)
                    outcomes.append(replace(outcome, existed=not is_new))
                except Exception as error:
                    outcomes.append(error)
            for number, (arriving, fd) in written.items():
                try:
                    self._finish_small(arriving, fd)
                    changed.add(arriving.path.parent)
                except Exception as error:
                    outcomes[number] = error
                    with contextlib.suppress(OSError):
                        arriving.unfinished.unlink()
        if self._is_durable:
            for directory in changed:
                sync_directory(directory)
        return [*outcomes]

    def _checked(self, arriving: Arriving) -> Complete:
        check = Check(arriving.total)
        check.feed(arriving.body)
        if check.digest != arriving.digest:
            raise digest_mismatch(check.digest)
        return Complete(check.finish(), arriving.total, existed=False)

    def _write_small(self, arriving: Arriving, files: contextlib.ExitStack) -> int:
        """Under a name of its own until it is whole. Returns the file, which is open as long as `files`."""
        with full_disk_noticed():
            self._check_reserve(arriving.total)
            fd = create(arriving.unfinished)
            files.callback(os.close, fd)
            try:
                write_all(fd, arriving.body, 0)
                if self._is_durable:
                    begin_writing(fd)
            except BaseException:
                arriving.unfinished.unlink()
                raise
        return fd

    def _finish_small(self, arriving: Arriving, fd: int) -> None:
        with full_disk_noticed():
            if self._is_durable:
                os.fsync(fd)
            crashpoint("blob.before-rename")
            move(arriving.unfinished, arriving.path)
            crashpoint("blob.after-rename")
        with contextlib.suppress(FileNotFoundError):
            arriving.part_path.unlink()  # what an earlier upload left of it

    async def open(self, owner: UUID, digest: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        path = self._path(owner, digest)
        try:
            fd = await self._disk.run(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise not_found(digest) from None
        try:
            position, stop = checked_range(os.fstat(fd).st_size, start, end)
            while position < stop:
                data = await self._disk.run(os.pread, fd, min(READ_BYTES, stop - position), position)
                if not data:
                    raise OSError(errno.EIO, "the file ends before its size", str(path))
                position += len(data)
                yield data
        finally:
            os.close(fd)

    @contextlib.asynccontextmanager
    async def local(self, owner: UUID, digests: Iterable[str]) -> AsyncIterator[dict[str, Path]]:
        paths = {digest: self._path(owner, digest) for digest in digests}
        for digest, path in paths.items():
            if size_of(path) is None:
                raise not_found(digest)
        yield paths

    async def adopt(self, owner: UUID, path: Path, examined: Examined | None = None) -> Examined:
        return await self._disk.run(self._adopt, owner, path, examined)

    async def delete(self, owner: UUID, *digests: str) -> None:
        if digests:
            await self._disk.run(remove, [self._path(owner, digest) for digest in digests], self._is_durable)

    async def list(self, owner: UUID) -> AsyncIterator[StoredBlob]:
        for blob in await self._disk.run(_blobs_in, self._root / str(owner)):
            yield blob

    async def parts(self) -> Sequence[StoredPart]:
        return await self._disk.run(self._list_parts)

    async def drop_parts(self, owner: UUID, sender: str) -> None:
        await self._disk.run(self._drop_parts, f"{owner}/*.{sender_hash(sender)}*")

    async def sweep_parts(self, older_than_s: float, owner: UUID | None = None) -> int:
        return await self._disk.run(self._drop_parts, f"{owner or '*'}/*", time.time() - older_than_s)

    async def probe(self) -> None:
        await self._disk.run(self._probe)

    async def close(self) -> None:
        await self._disk.close()

    @lru_cache(maxsize=4096)  # noqa: B019  # stores are few and live as long as their process
    def _path(self, owner: UUID, digest: str) -> Path:
        return Path(f"{self._root}/{owner}/{hex_of(digest)}")

    def _part_path(self, owner: UUID, digest: str, sender: str) -> Path:
        return Path(f"{self._parts}/{owner}/{hex_of(digest)}.{sender_hash(sender)}")

    def _open_part(self, arriving: Arriving) -> _FilePart:
        with full_disk_noticed():
            self._check_reserve(max(0, arriving.total - arriving.offset))
            make_directory(arriving.part_path.parent)
            try:
                creating = 0 if arriving.offset else os.O_CREAT
                fd = os.open(arriving.part_path, os.O_RDWR | os.O_CLOEXEC | creating, 0o600)
            except FileNotFoundError:
                raise offset_mismatch(0) from None
        stored = os.fstat(fd).st_size
        if stored != arriving.offset:
            os.close(fd)
            raise offset_mismatch(stored)
        return _FilePart(self._disk, fd, arriving.part_path, arriving.path)

    def _adopt(self, owner: UUID, source: Path, examined: Examined | None) -> Examined:
        if examined is None:
            examined = examine(source)
        path = self._path(owner, examined.digest)
        if path.exists():
            source.unlink()
            return examined
        with full_disk_noticed():
            source.chmod(FILE_MODE)  # whoever made it did not know that it would be a blob
            is_same_disk = source.stat().st_dev == self._root.stat().st_dev
            if is_same_disk and not self._is_durable:
                move(source, path)
                return examined
            self._check_reserve(0 if is_same_disk else examined.num_bytes)
            if is_same_disk:
                self._take_place(source, path)
            else:
                directory = self._parts / str(owner)
                make_directory(directory)
                with tempfile.TemporaryDirectory(prefix="adopted-", dir=directory) as inbox:
                    self._take_place(Path(shutil.move(source, Path(inbox, "blob"))), path)
        return examined

    def _take_place(self, source: Path, path: Path) -> None:
        sync(source)
        crashpoint("blob.before-rename")
        install(source, path)
        crashpoint("blob.after-rename")

    def _check_reserve(self, wanted_bytes: int) -> None:
        disk = os.statvfs(self._root)
        free = disk.f_bavail * disk.f_frsize
        if free - wanted_bytes < self._reserve_bytes:
            wish = f"{wanted_bytes} bytes do not fit: {free} are free and {self._reserve_bytes} of them stay reserved"
            raise StorageFull(errno.ENOSPC, wish)

    def _drop_parts(self, pattern: str, before: float = math.inf) -> int:
        num_dropped = 0
        for path in self._parts.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime <= before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    num_dropped += 1
        return num_dropped

    def _list_parts(self) -> Sequence[StoredPart]:
        return [
            StoredPart(UUID(path.parent.name), path.name.split(".")[1], num_bytes)
            for path in self._parts.glob("*/*.*")
            if (num_bytes := size_of(path)) is not None
        ]

    def _probe(self) -> None:
        with full_disk_noticed():
            self._check_reserve(0)
            with tempfile.NamedTemporaryFile(dir=self._parts, prefix="probe-") as file:
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())


class _FilePart:
    """An open part file.

    The file lock is held for one write at a time, and each write makes sure that the file still ends where the last one
    left it. So an upload never waits behind a dead one, and of two live ones the slower is told to look again.
    """

    def __init__(self, disk: Disk, fd: int, part_path: Path, path: Path) -> None:
        self._disk = disk
        self._fd: int | None = fd
        self._part_path = part_path
        self._path = path
        self._in_use = threading.Lock()  # a cancelled upload closes while its last write may still be running

    async def append(self, at: int, pieces: list[bytes], check: Check | None) -> None:
        await self._disk.run(self._append, at, pieces, check)

    async def read_back(self, check: Check) -> None:
        await self._disk.run(self._read_back, check)

    async def commit(self, num_bytes: int) -> bool:
        return await self._disk.run(self._commit, num_bytes)

    async def discard(self) -> None:
        await self._disk.run(self._discard)

    def close(self) -> None:
        with self._in_use:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _append(self, at: int, pieces: list[bytes], check: Check | None) -> None:
        data = b"".join(pieces)
        with self._locked() as fd, full_disk_noticed():
            self._expect_end(fd, at)
            write_all(fd, data, at)
        if check is not None:
            check.feed(data)

    def _read_back(self, check: Check) -> None:
        with self._locked() as fd:
            position = 0
            while data := os.pread(fd, READ_BYTES, position):
                check.feed(data)
                position += len(data)

    def _commit(self, num_bytes: int) -> bool:
        with self._locked() as fd, full_disk_noticed():
            if self._path.exists():
                self._unlink(fd)
                return True
            self._expect_end(fd, num_bytes)
            os.fsync(fd)
            crashpoint("blob.before-rename")
            install(self._part_path, self._path)
            crashpoint("blob.after-rename")
            return False

    def _discard(self) -> None:
        with self._locked() as fd:
            self._unlink(fd)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        with self._in_use:
            if self._fd is None:
                raise InvariantBroken("the part is closed")
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield self._fd
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _expect_end(self, fd: int, at: int) -> None:
        status = os.fstat(fd)
        stored = status.st_size if status.st_nlink else 0  # dropped meanwhile
        if stored != at or not status.st_nlink:
            raise offset_mismatch(stored)

    def _unlink(self, fd: int) -> None:
        """Unless another upload has begun a new part under this name."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._part_path.stat(), os.fstat(fd)):
                self._part_path.unlink()


def _blobs_in(directory: Path) -> tuple[StoredBlob, ...]:
    blobs = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
                blobs.append(StoredBlob(f"sha256:{entry.name}", status.st_size, modified_at))
    return tuple(blobs)
