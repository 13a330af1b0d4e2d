"""Disk operations of the file store: threads for them, durable renames, and the one meaning of "full"."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Generic, ParamSpec, Protocol, TypeVar

from coordinator.batching import yield_to_loop
from coordinator.blobs.port import StorageFull
from services.core.private_files import make_directory, sync

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

READ_BYTES: Final = 2**20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class Run(Protocol):
    """How to call what must not hold up the event loop."""

    async def __call__(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


class Disk(Protocol):
    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def submit(self, work: Callable[[], None]) -> None:
        """Start and do not wait: for clean-up in a task that may be cancelled."""

    async def close(self) -> None: ...


class _ThisThread:
    """Does everything where it is asked for."""

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return work(*args, **kwargs)

    def submit(self, work: Callable[[], None]) -> None:
        work()

    async def close(self) -> None:
        pass


THIS_THREAD: Final = _ThisThread()


class DiskThreads:
    """Keeps the event loop from waiting for the disk, and slow fsyncs from starving the loop's default executor."""

    def __init__(self, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="blobs")

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
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


class Batches(Generic[A, B]):
    """Work on items that come one by one, many at a time: all that have gathered while the last lot was worked on.

    Threads that come and go between a busy loop's statements cost more than what they do for one small item."""

    def __init__(self, run: Run, work: Callable[[Sequence[A]], Sequence[B | Exception]]) -> None:
        self._run_work, self._work = run, work
        self._waiting: list[tuple[A, asyncio.Future[B]]] = []
        self._working: asyncio.Task[None] | None = None

    def add(self, item: A) -> asyncio.Future[B]:
        outcome: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, outcome))
        if self._working is None:
            self._working = asyncio.create_task(self._run())
        return outcome

    async def _run(self) -> None:
        while self._waiting:
            await yield_to_loop()
            lot, self._waiting = self._waiting, []
            try:
                results = await self._run_work(self._work, [item for item, _ in lot])
            except Exception as error:  # the disk was shut down, or a directory cannot be synced
                results = [error] * len(lot)
            for (_, outcome), result in zip(lot, results, strict=True):
                if outcome.done():  # whoever waited has gone
                    continue
                if isinstance(result, Exception):
                    outcome.set_exception(result)
                else:
                    outcome.set_result(result)
        self._working = None


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


def begin_writing(fd: int) -> None:
    """Have the disk begin with what was written, so that a later sync waits less; a hint that not all systems know."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def create(path: Path) -> int:
    """A file to write, in a directory that may have to be made first."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        make_directory(path.parent)
        return os.open(path, flags, 0o600)


def install(source: Path, target: Path, is_durable: bool) -> None:
    """Rename a file whose bytes are on the disk to its final place."""
    move(source, target)
    if is_durable:
        sync(target.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file, into a directory that may have to be made first."""
    try:
        source.rename(target)
    except FileNotFoundError:
        make_directory(target.parent)
        sync(target.parent.parent)
        source.rename(target)


def remove(paths: Iterable[Path], is_durable: bool) -> None:
    """Durably: what was deleted does not come back with the power."""
    changed = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            changed.add(path.parent)
    if is_durable:
        for directory in changed:
            sync(directory)
