"""What nobody may bring back: for each request the digests of what it took out of use, outside the database and its
backups. A database that is restored from before learns from them what it has forgotten.

A file for each request, of records of one length: first the federation, then one for each digest. They are appended,
and durable before `add` returns. A crash in the middle of a write leaves a piece of a record, which is cut off by the
next. There is nothing in them but digests: of bytes that are gone, and that nobody can make of them.
Methods block on the disk: call them from a thread.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from services.core.private_files import FILE_MODE, make_directory, sync

TAINT: Final = "taint"
"""The name of their directory, in that of evidence."""
_DIGEST_BYTES: Final = 32
RECORD_BYTES: Final = 1 + _DIGEST_BYTES
_FEDERATION, _MODEL, _UPDATE = b"f", b"m", b"u"
_PREFIX: Final = "sha256:"


@dataclass(frozen=True, slots=True)
class TaintList:
    """`models`: nobody may send these bytes. `updates`: another client may have come to the same; no operator has."""

    federation_id: UUID
    models: frozenset[str]
    updates: frozenset[str]
    num_bytes: int
    """Of the file up to here."""


class TaintLists:
    """Several processes may share the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, request_id: UUID, federation_id: UUID, models: Iterable[str], updates: Iterable[str]) -> int:
        """Add what the request's list does not have; returns its length in bytes."""
        if not self._directory.exists():
            make_directory(self._directory)
            sync(self._directory.parent)
        with _alone(self._path(request_id)) as fd:
            size = os.fstat(fd).st_size
            whole = size - size % RECORD_BYTES
            if whole != size:
                os.ftruncate(fd, whole)
            known = set(_records(fd, 0, whole))
            wanted = [_FEDERATION + federation_id.bytes.ljust(_DIGEST_BYTES, b"\0")]
            wanted += [_MODEL + _raw(digest) for digest in sorted(set(models))]
            wanted += [_UPDATE + _raw(digest) for digest in sorted(set(updates))]
            data = memoryview(b"".join(record for record in wanted if record not in known))
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
            size = os.fstat(fd).st_size
        sync(self._directory)
        return size

    def sizes(self) -> dict[UUID, int]:
        """How long the list of each request is, in bytes."""
        found = {}
        for path in self._directory.glob("*.digests"):
            size = path.stat().st_size
            found[UUID(path.stem)] = size - size % RECORD_BYTES
        return found

    def read(self, request_id: UUID, start: int = 0) -> TaintList | None:
        """What the list says from a place on. None: there is no list, or nothing in it."""
        try:
            with _alone(self._path(request_id), os.O_RDONLY) as fd:
                size = os.fstat(fd).st_size
                size -= size % RECORD_BYTES
                if size == 0:
                    return None
                (first,) = _records(fd, 0, RECORD_BYTES)
                records = list(_records(fd, max(start, RECORD_BYTES), size))
        except FileNotFoundError:
            return None
        models = frozenset(_digest(record) for record in records if record[:1] == _MODEL)
        updates = frozenset(_digest(record) for record in records if record[:1] == _UPDATE)
        return TaintList(UUID(bytes=first[1:17]), models, updates, size)

    def _path(self, request_id: UUID) -> Path:
        return self._directory / f"{request_id}.digests"


@contextmanager
def _alone(path: Path, flags: int = os.O_RDWR | os.O_APPEND | os.O_CREAT) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _records(fd: int, start: int, end: int) -> Iterator[bytes]:
    while start < end and (piece := os.pread(fd, min(end - start, RECORD_BYTES * 2**15), start)):
        piece = piece[: len(piece) - len(piece) % RECORD_BYTES]
        start += len(piece)
        for at in range(0, len(piece), RECORD_BYTES):
            yield piece[at : at + RECORD_BYTES]


def _raw(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix(_PREFIX))


def _digest(record: bytes) -> str:
    return _PREFIX + record[1:].hex()
