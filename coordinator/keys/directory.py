"""Keys as files of 32 random bytes in a directory that only its owner can use.

A key is made beside its name and linked to it when it is whole, so a crash leaves none or a whole one. It is destroyed
by overwriting the file, which stays: nothing is ever made under its name again. Those who make or destroy take turns by
a lock on a file beside the keys; those who look do not wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.keys.port import Destroyed, KeyName, Turn, checked, is_key_name
from services.core import private_files
from services.sealing.segments import KEY_BYTES

_DESTROYED: Final = bytes(KEY_BYTES)
_UNFINISHED: Final = ".new-"
_PROBE_BYTES: Final = 4096
_NOTED: Final = ".noted"
"""Ends the names of files beside keys that say what was wrapped again under them."""
_Stamp = tuple[int, int, int]


class DirectoryKeys:
    """`is_durable` False, for experiments: nothing waits for the disk, and a power failure may lose keys."""

    def __init__(self, directory: Path, is_durable: bool = True) -> None:
        self._directory = directory
        self._is_durable = is_durable
        self._is_prepared = False
        self._known: dict[KeyName, tuple[str, _Stamp, bytes]] = {}

    def find(self, name: KeyName) -> bytes | None:
        if (known := self._known.get(name)) is not None:
            path, stamp, key = known
            if stamp == _stamp_of(path):
                return key
            self._known.pop(name, None)  # destroyed, perhaps by another process
        return self._load(name)

    def find_or_make(self, name: KeyName) -> bytes:
        if (key := self.find(name)) is not None:
            return key
        with self._alone():
            if (key := self.find(name)) is None:
                key = self._make(self._path(name))
        self._sync(self._directory)
        return key

    def destroy(self, names: Collection[KeyName]) -> None:
        paths = [self._path(name) for name in names]
        if not paths:
            return
        with self._alone():
            self._shred(paths)
            for path in self._directory.glob(f"{_UNFINISHED}*"):
                path.unlink(missing_ok=True)  # not overwritten: it may be a second link to a key that is in use
            self._sync(self._directory)
        for name in names:
            self._known.pop(name, None)

    def is_destroyed(self, name: KeyName) -> bool:
        return self._path(name).exists() and not self._is_there(name)

    def take_turn(self) -> Turn | None:
        self._prepare()
        file = private_files.create(self._directory / ".turn")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def note(self, name: KeyName, wrapped: Mapping[UUID, bytes]) -> None:
        self._prepare()
        path = self._directory / f"{checked(name)}{_NOTED}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, private_files.FILE_MODE)
        with os.fdopen(fd, "ab") as file:
            file.writelines(b"%s %s\n" % (blob.hex.encode(), key.hex().encode()) for blob, key in wrapped.items())
        self._sync(path)
        self._sync(self._directory)

    def noted(self, blob_id: UUID, cohort_id: UUID) -> tuple[KeyName, bytes] | None:
        for path in self._directory.glob(f"cohort-{cohort_id}.*{_NOTED}"):
            name = path.name.removesuffix(_NOTED)
            if self.find(name) is not None:
                for line in path.read_bytes().splitlines():
                    blob, _, key = line.partition(b" ")
                    if blob == blob_id.hex.encode() and len(key) % 2 == 0:
                        return name, bytes.fromhex(key.decode())
        return None

    def names(self) -> set[KeyName]:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return set()
        return {name for name in names if is_key_name(name) and self._is_there(name)}

    def probe(self) -> None:
        self._prepare()
        path = self._directory / f"{_UNFINISHED}probe-{os.getpid()}"
        try:
            with private_files.create(path) as file:
                file.write(bytes(_PROBE_BYTES))
            self._sync(path)
        finally:
            path.unlink(missing_ok=True)

    def _load(self, name: KeyName) -> bytes | None:
        path = self._path(name)
        try:
            stamp, key = _read(path)
        except FileNotFoundError:
            return None
        if key is None:
            return None
        self._sync(self._directory)  # whoever made it may have died before its own
        self._known[name] = str(path), stamp, key
        return key

    def _make(self, path: Path) -> bytes:
        if path.exists():
            raise Destroyed(path.name)
        unfinished = self._directory / f"{_UNFINISHED}key"
        unfinished.unlink(missing_ok=True)
        key = os.urandom(KEY_BYTES)
        with private_files.create(unfinished) as file:
            file.write(key)
            file.flush()
            _set_apart(file.fileno())
        self._sync(unfinished)
        os.link(unfinished, path)
        unfinished.unlink()
        return key

    def _shred(self, paths: Collection[Path]) -> None:
        """All are overwritten before the first is waited for: the disk then writes them together."""
        for path in paths:
            _overwrite(path)
        for path in paths:
            self._sync(path)

    def _is_there(self, name: KeyName) -> bool:
        try:
            return _read(self._path(name))[1] is not None
        except FileNotFoundError:
            return False

    def _path(self, name: KeyName) -> Path:
        return self._directory / checked(name)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The lock belongs to this opening of the file: it also holds off other threads, and ends with the process."""
        self._prepare()
        with private_files.create(self._directory / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _prepare(self) -> None:
        if self._is_prepared and self._directory.is_dir():
            return
        missing = [path for path in self._directory.parents if not path.is_dir()]
        private_files.make_directory(self._directory)
        for path in {self._directory.parent, *(path.parent for path in missing)}:
            self._sync(path)
        self._is_prepared = True

    def _sync(self, path: Path) -> None:
        if self._is_durable:
            private_files.sync(path)


def _read(path: Path) -> tuple[_Stamp, bytes | None]:
    """The stamp is taken first: if the file is overwritten meanwhile, the stamp is no longer the file's."""
    with path.open("rb", buffering=0) as file:
        stamp = _stamp(os.fstat(file.fileno()))
        key = file.read(KEY_BYTES + 1)
    return stamp, key if len(key) == KEY_BYTES and key != _DESTROYED else None


def _overwrite(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, private_files.FILE_MODE)
    try:
        os.pwrite(fd, _DESTROYED, 0)
    finally:
        os.close(fd)


def _stamp_of(path: str) -> _Stamp | None:
    try:
        return _stamp(os.stat(path))  # noqa: PTH116  # each use of a key asks: a path as text takes half the time
    except FileNotFoundError:
        return None


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _set_apart(fd: int) -> None:
    """Give the file a time of its own within this second. The clock of a file system may tick every few milliseconds: a
    stamp could otherwise not tell whether the file was overwritten since."""
    second = os.fstat(fd).st_mtime_ns // 10**9 * 10**9
    moment = second + int.from_bytes(os.urandom(4)) % 10**9
    os.utime(fd, ns=(moment, moment))
