"""Models on disk, named by digest, for their owner's eyes only. Bounded: the least recently used go first, and a model
that is larger than the bound goes as soon as its task is done. Only models that tasks are using at this moment may
together be larger. Several agents and processes may share the directory, because a file appears under its name only
when complete.

What an erasure has superseded is dropped, at the latest when the task that uses it is done."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from services.core.private_files import FILE_MODE, make_directory, tighten, tighten_directory

log = structlog.get_logger()
Fetch = Callable[[str, int, Path], Awaitable[None]]
"""(digest, num_bytes, path): bring the blob into `path`, checked; see Transport.download."""

SUFFIX: Final = ".safetensors"
PART_SUFFIX: Final = ".part"
ABANDONED_AFTER_S: Final = 86400.0


class ModelCache:
    def __init__(self, directory: Path, max_bytes: int) -> None:
        make_directory(directory)
        tighten_directory(directory)
        tighten(*directory.glob(f"*{SUFFIX}*"))
        self._directory = directory
        self._max_bytes = max_bytes
        self._locks: dict[str, asyncio.Lock] = {}
        self._in_use: dict[str, int] = {}
        self._doomed: set[str] = set()
        """Models that are in use, and to be deleted afterwards."""
        self._checked: set[str] = set()

    @contextlib.asynccontextmanager
    async def hold(self, digest: str, num_bytes: int, fetch: Fetch, *, keeps: bool = True) -> AsyncIterator[Path]:
        """The path of the model, fetched when it is not here yet (once, however many ask); kept while held, and
        afterwards as long as there is room, unless it is not to be kept."""
        self._in_use[digest] = self._in_use.get(digest, 0) + 1
        if not keeps:
            self._doomed.add(digest)
        try:
            async with self._locks.setdefault(digest, asyncio.Lock()):
                path = self._path(digest)
                if not await self._is_sound(digest, path, num_bytes):
                    await self._bring(digest, num_bytes, path, fetch)
                with contextlib.suppress(OSError):
                    os.utime(path)
            yield path
        finally:
            self._in_use[digest] -= 1
            if not self._in_use[digest]:
                del self._in_use[digest]
                self._locks.pop(digest, None)
                if digest in self._doomed:
                    self._remove(digest)
                self._make_room(0)

    def drop(self, digests: Iterable[str]) -> bool:
        """Delete these models, also what is left of unfinished downloads; those in use as soon as they are not.
        Whether all of them are gone."""
        wanted = set(digests)
        for digest in wanted - self._in_use.keys():
            self._remove(digest)
        self._doomed |= wanted & self._in_use.keys()
        return wanted.isdisjoint(self._in_use)

    def drop_all(self) -> bool:
        """Like `drop`, for everything that is here."""
        names = (path.name for path in self._directory.iterdir() if SUFFIX in path.name)
        return self.drop(["sha256:" + name.partition(SUFFIX)[0] for name in names])

    def _remove(self, digest: str) -> None:
        path = self._path(digest)
        for one in (path, *self._directory.glob(f"{path.name}.*{PART_SUFFIX}")):
            one.unlink(missing_ok=True)
        self._checked.discard(digest)
        self._doomed.discard(digest)

    def _path(self, digest: str) -> Path:
        return self._directory / (digest.removeprefix("sha256:") + SUFFIX)

    async def _is_sound(self, digest: str, path: Path, num_bytes: int) -> bool:
        """A file left by an earlier process is hashed once: without fsync, a power cut can leave anything."""
        try:
            if path.stat().st_size != num_bytes:
                return False
            if digest not in self._checked:
                if await asyncio.to_thread(_sha256, path) != digest:
                    return False
                self._checked.add(digest)
        except FileNotFoundError:
            return False
        return True

    async def _bring(self, digest: str, num_bytes: int, path: Path, fetch: Fetch) -> None:
        if num_bytes > self._max_bytes:
            log.warning("cache.too-small", digest=digest, num_bytes=num_bytes, cache_bytes=self._max_bytes)
        self._make_room(num_bytes)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PART_SUFFIX}")
        try:
            await fetch(digest, num_bytes, partial)
            partial.chmod(FILE_MODE)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self._checked.add(digest)

    def _make_room(self, num_bytes: int) -> None:
        """Delete what was not used for longest until there is. What a killed process left unfinished goes, too."""
        files, now = [], time.time()
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.name.endswith(SUFFIX):
                    files.append((status.st_mtime_ns, status.st_size, path))
                elif path.name.endswith(PART_SUFFIX) and status.st_mtime < now - ABANDONED_AFTER_S:
                    path.unlink()
        total = sum(size for _, size, _ in files) + num_bytes
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                return
            digest = "sha256:" + path.name.removesuffix(SUFFIX)
            if digest not in self._in_use:
                path.unlink(missing_ok=True)
                self._checked.discard(digest)
                total -= size


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
