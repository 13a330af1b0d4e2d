"""Disk operations of the file store: threads for them, durable renames, and the one meaning of "full"."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from coordinator.blobs.port import StorageFull
from services.core.errors import InvariantBroken

P = ParamSpec("P")
T = TypeVar("T")

READ_BYTES: Final = 2**20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class Disk(Protocol):
    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def submit(self, work: Callable[[], None]) -> None:
        """Start and do not wait: for clean-up in a task that may be cancelled."""

    async def close(self) -> None: ...


class _ThisThread:
    """For code that is on a thread of the disk's already."""

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return work(*args, **kwargs)

    def submit(self, work: Callable[[], None]) -> None:
        work()

    async def close(self) -> None:
        pass


THIS_THREAD: Final = _ThisThread()


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise InvariantBroken("it waits after all")


class DiskThreads:
    """Keeps the event loop from waiting for the disk, and slow fsyncs from starving the loop's default executor."""

    def __init__(self, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="blobs")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs:
            raise TypeError("disk work takes positional arguments")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    def submit(self, work: Callable[[], None]) -> None:
        try:
            self._executor.submit(work)
        except RuntimeError:  # shut down
            work()

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)


@contextlib.contextmanager
def full_disk_noticed() -> Iterator[None]:
    try:
        yield
    except StorageFull:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(error.errno, error.strerror, error.filename) from error
        raise


def size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while data := file.read(READ_BYTES):
            yield data


def write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def install(source: Path, target: Path, is_durable: bool = True) -> None:
    """Rename a file whose bytes are on the disk to its final place, durably."""
    is_new_directory = not target.parent.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)
    if not is_durable:
        return
    sync_directory(target.parent)
    if is_new_directory:
        sync_directory(target.parent.parent)
        sync_directory(target.parent.parent.parent)


def remove(path: Path, is_durable: bool = True) -> None:
    """Durably: what was deleted does not come back with the power."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    if is_durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
