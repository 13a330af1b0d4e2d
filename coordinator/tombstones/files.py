"""The log as a file of JSON lines, each chained to the one before by its digest.

A line is appended and fsynced before `append` returns. A crash in the middle of a write leaves a piece of a line at the
end; nobody was told of it, and it is cut off. Any other deviation is `LogCorrupt`. What no file can show by itself is
that whole lines are missing at its end: the database knows how many there must be.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pydantic import ValidationError

from coordinator.tombstones.port import Contents, LogCorrupt, Stamp, Tombstone
from services.core import digests
from services.core.private_files import sync
from services.wire.message import Digest, Message

PROBE_BYTES: Final = 65536
"""Room for some hundred entries."""
FIRST_PREVIOUS: Final = digests.of_bytes(b"lethe tombstones v1")


class _Line(Message):
    index: int
    previous: Digest
    entry: Tombstone
    digest: Digest


class FileTombstoneLog:
    """Several threads, and several processes that see the same file, may append at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chain = _Chain()
        self._is_durable = False

    def append(self, entry: Tombstone) -> int:
        with self._opened(create=True) as fd:
            self._chain.follow(fd)
            if (index := self._chain.find(entry)) is not None:
                os.fsync(fd)  # whoever wrote it may have died before its own
                return index
            line = self._chain.next_line(entry)
            try:
                _write_all(fd, line)
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, self._chain.num_bytes)
                raise
            return self._chain.add(line)

    def probe(self) -> None:
        _make_directory(self._path.parent)
        _try_to_write(self._path.with_name(f".probe-{os.getpid()}"))
        if self._chain.num_bytes or self._path.exists():
            with self._opened(create=False) as fd:
                self._chain.follow(fd)

    def entries(self) -> tuple[Tombstone, ...]:
        try:
            with self._opened(create=False) as fd:
                chain = _Chain()
                chain.follow(fd)
        except FileNotFoundError:
            return ()
        return tuple(chain.entries)

    def contents(self) -> Contents:
        try:
            with self._opened(create=False) as fd:
                if not self._chain.is_in(fd):
                    self._chain = _Chain()
                self._chain.follow(fd)
                chain, stamp = self._chain, _stamp(os.fstat(fd))
                return Contents(tuple(chain.entries), (FIRST_PREVIOUS, *chain.digests), stamp)
        except FileNotFoundError:
            self._chain = _Chain()
            return Contents((), (FIRST_PREVIOUS,), None)

    def salvage(self) -> int:
        chain = _Chain()
        with self._opened(create=False) as fd:
            try:
                chain.follow(fd)
                return 0
            except LogCorrupt:
                data = _read_from(fd, 0)
        whole = self._path.with_name(f".{self._path.name}-{os.getpid()}")
        _write_durably(whole, data[: chain.num_bytes])
        self._path.replace(_free_name(self._path))
        whole.replace(self._path)
        sync(self._path.parent)
        self._chain = _Chain()
        return len(data) - chain.num_bytes

    def stamp(self) -> Stamp | None:
        try:
            return _stamp(self._path.stat())
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _opened(self, *, create: bool) -> Iterator[int]:
        """The file, alone: the lock belongs to this opening, so it also holds off other threads."""
        if create and not self._is_durable:
            _make_directory(self._path.parent)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        fd = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if create and not self._is_durable:
                sync(self._path.parent)
                self._is_durable = True
            yield fd
        finally:
            os.close(fd)


class _Chain:
    """The lines read and checked so far. `follow` reads on from there, so that an append costs one line, not all."""

    def __init__(self) -> None:
        self.entries: list[Tombstone] = []
        self.digests: list[str] = []
        self.num_bytes = 0
        self._last = FIRST_PREVIOUS
        self._last_line = b""
        self._of_request: dict[UUID, list[int]] = {}
        self._file: tuple[int, int] | None = None

    def is_in(self, fd: int) -> bool:
        """Whether the file still has what was read, as far as its last line tells."""
        status = os.fstat(fd)
        if self._file not in (None, (status.st_dev, status.st_ino)) or status.st_size < self.num_bytes:
            return False
        num_bytes = len(self._last_line)
        return os.pread(fd, num_bytes, self.num_bytes - num_bytes) == self._last_line

    def follow(self, fd: int) -> None:
        status = os.fstat(fd)
        if self._file not in (None, (status.st_dev, status.st_ino)) or status.st_size < self.num_bytes:
            raise LogCorrupt("the log was replaced or cut while it was in use")
        self._file = (status.st_dev, status.st_ino)
        data = _read_from(fd, self.num_bytes)
        *lines, tail = data.split(b"\n")
        for line in lines:
            self.add(line + b"\n")
        if tail:
            self._mend(fd, tail)

    def add(self, line: bytes) -> int:
        record = self._check(line)
        index = len(self.entries)
        self.entries.append(record.entry)
        self._of_request.setdefault(record.entry.request_id, []).append(index)
        self.digests.append(record.digest)
        self._last, self._last_line = record.digest, line
        self.num_bytes += len(line)
        return index

    def find(self, entry: Tombstone) -> int | None:
        known = self._of_request.get(entry.request_id, [])
        return next((index for index in known if self.entries[index].says_the_same_as(entry)), None)

    def next_line(self, entry: Tombstone) -> bytes:
        record = {"index": len(self.entries), "previous": self._last, "entry": _document(entry)}
        return _encode({**record, "digest": digests.of_json(record)})

    def _check(self, line: bytes) -> _Line:
        number = len(self.entries) + 1
        try:
            record = _Line.model_validate_json(line)
        except ValidationError:
            raise LogCorrupt(f"line {number} is not an entry") from None
        if record.previous != self._last or record.index != len(self.entries):
            raise LogCorrupt(f"line {number} does not follow the line before it")
        if line != self.next_line(record.entry):  # the digest included
            raise LogCorrupt(f"line {number} was changed after it was written")
        return record

    def _mend(self, fd: int, tail: bytes) -> None:
        """Bytes after the last line feed: a write that was cut short, or a log that somebody changed."""
        if _holds_whole_record(tail):
            self._check(tail + b"\n")  # nothing but its line feed is missing
            _write_all(fd, b"\n")
            os.fsync(fd)
            self.add(tail + b"\n")
        else:
            os.ftruncate(fd, self.num_bytes)
            os.fsync(fd)


def _document(entry: Tombstone) -> dict[str, Any]:
    """The entry as JSON, without what older entries do not have: their digests stay what they were."""
    absent = {name for name in ("requested_by", "filed_as") if getattr(entry, name) is None}
    return entry.model_dump(mode="json", exclude=absent)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _holds_whole_record(tail: bytes) -> bool:
    try:
        json.JSONDecoder().raw_decode(tail.decode("latin-1"))
    except json.JSONDecodeError:
        return False
    return True


def _read_from(fd: int, offset: int) -> bytes:
    pieces = []
    while piece := os.pread(fd, 2**20, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _try_to_write(path: Path) -> None:
    try:
        _write_durably(path, bytes(PROBE_BYTES))
    finally:
        path.unlink(missing_ok=True)


def _write_durably(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _free_name(path: Path) -> Path:
    """A path for what is put aside: nothing is overwritten."""
    return next(place for n in itertools.count(1) if not (place := path.with_name(f"{path.name}.damaged-{n}")).exists())


def _make_directory(path: Path) -> None:
    if not path.exists():
        _make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync(path.parent)
