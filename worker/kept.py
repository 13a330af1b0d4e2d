"""What a client keeps between its tasks, and never sends.

What is remembered lies in the memory of this process alone. What is written lies sealed in a directory of the client's,
under a key in a file elsewhere: without the key every copy of it is noise. All of it goes when the samples change that
the client leaves out, or when it is erased; what belongs to a recovery also when its cohort goes on without that, and
when it was not used for a while.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from services.core import digests
from services.core.private_files import create, make_directory
from services.sealing.envelope import WRAPPED_BYTES, new_data_key, unwrap, wrap
from services.sealing.segments import KEY_BYTES, Seal, SealedReader, Unreadable

if TYPE_CHECKING:
    from torch import Tensor

FORGOTTEN_AFTER_S: Final = 900.0
"""What is remembered goes when it was not used for so long: the client was not asked in the recovery's last round."""
DROPPED_AFTER_S: Final = 86400.0
"""The same of what was written for one recovery, which survives a restart."""
SUFFIX: Final = ".sealed"
UUID_BYTES: Final = 16
LASTING: Final = "distilled"
"""Sets whose names begin so belong to no recovery: they are used by later ones as well."""


class KeptSets:
    """What one client keeps. Without a directory, what is written is kept in memory as well."""

    def __init__(
        self, directory: Path | None = None, key_file: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._directory, self._key_file, self._clock = directory, key_file, clock
        self._memory: dict[str, tuple[Any, float]] = {}
        self._scopes: dict[str, str] = {}
        """The recovery under way in each cohort."""
        if directory is not None and directory.is_dir():
            self.forget_unused()

    # in memory

    def recall(self, name: str) -> Any | None:
        found = self._memory.get(name)
        if found is None:
            return None
        self._memory[name] = (found[0], self._clock())
        return found[0]

    def remember(self, name: str, value: Any) -> None:
        self._memory[name] = (value, self._clock())

    def forget(self, name: str) -> None:
        self._memory.pop(name, None)

    # sealed

    def read(self, name: str) -> dict[str, Tensor] | None:
        """None: there is no such set, or it cannot be read any more."""
        if self._directory is None:
            found = self.recall(f"written/{name}")
            return None if found is None else dict(found)
        try:
            sealed = self._path(name).read_bytes()
            return _opened(sealed, self._key())
        except (FileNotFoundError, Unreadable):
            return None

    def write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """It is on the disk, whole, when this returns."""
        if self._directory is None:
            self.remember(f"written/{name}", {key: tensor.clone() for key, tensor in tensors.items()})
            return
        make_directory(self._directory)
        path = self._path(name)
        partial = path.with_suffix(f".{uuid4().hex}.part")
        try:
            with create(partial) as file:
                file.write(_sealed(tensors, self._key()))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def drop(self, name: str) -> None:
        self.forget(f"written/{name}")
        if self._directory is not None:
            self._path(name).unlink(missing_ok=True)

    # letting go

    def enter(self, scope: str, recovery: str | None) -> None:
        """A task of this cohort comes, of this recovery or of none: what was kept for an earlier one goes."""
        before = self._scopes.pop(scope, None)
        if recovery is not None:
            self._scopes[scope] = recovery
        if before is not None and before != recovery:
            self._drop_where(lambda prefix: prefix == _prefix(before))

    def forget_unused(self) -> None:
        now = self._clock()
        for name, (_, used) in list(self._memory.items()):
            if now - used > FORGOTTEN_AFTER_S and not name.startswith("written/"):
                self._memory.pop(name, None)
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith(_prefix(LASTING)) and now - path.stat().st_mtime > DROPPED_AFTER_S:
                    path.unlink()

    def leave_out(self, samples: Collection[int]) -> None:
        """Samples are left out from now on: whatever was made of others goes."""
        if self._directory is None:
            self._memory.clear()
            return
        said = digests.of_json(sorted(samples))
        note = self._directory / "left-out"
        if not note.is_file() or note.read_text("ascii") != said:
            self.drop_all()
            make_directory(self._directory)
            with create(note) as file:
                file.write(said.encode("ascii"))

    def drop_all(self) -> None:
        """The key first: then no copy of the rest can be read."""
        self._memory.clear()
        if self._key_file is not None:
            self._key_file.unlink(missing_ok=True)
        self._drop_where(lambda prefix: True)

    def _drop_where(self, is_meant: Callable[[str], bool]) -> None:
        for name in list(self._memory):
            if is_meant(_prefix(name.removeprefix("written/"))):
                self._memory.pop(name, None)
        for path in self._files():
            if is_meant(path.name.partition(".")[0]):
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        if self._directory is None or not self._directory.is_dir():
            return []
        return [path for path in self._directory.iterdir() if path.name != "left-out"]

    def _path(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{_prefix(name)}.{hashlib.sha256(name.encode()).hexdigest()[:32]}{SUFFIX}"

    def _key(self) -> bytes:
        if self._key_file is None:
            raise ValueError("a directory of sealed sets needs a file for their key")
        with contextlib.suppress(FileNotFoundError):
            key = self._key_file.read_bytes()
            if len(key) == KEY_BYTES:
                return key
        key = os.urandom(KEY_BYTES)
        make_directory(self._key_file.parent)
        with create(self._key_file) as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        return key


def _prefix(name: str) -> str:
    """What the files of all sets of one recovery begin with, which is the first part of their names; nobody learns the
    name from it."""
    return hashlib.sha256(name.partition("/")[0].encode()).hexdigest()[:16]


class _Bytes:
    """A new file in memory."""

    def __init__(self) -> None:
        self.all = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self.all += data

    def restart(self) -> None:
        self.all.clear()


class _Opened(SealedReader):
    """A sealed file in memory, as the codec reads files."""

    def open(self) -> _Opened:
        return self

    def close(self) -> None:
        pass


def _sealed(tensors: Mapping[str, Tensor], key: bytes) -> bytes:
    """Object id ‖ wrapped data key ‖ segments of the safetensors file."""
    from services.models.weights import write_tensors

    plain, object_id, data_key = _Bytes(), uuid4(), new_data_key()
    write_tensors(plain, tensors)
    return object_id.bytes + wrap(key, data_key, object_id) + Seal(data_key, object_id).seal(plain.all, 0)


def _opened(sealed: bytes, key: bytes) -> dict[str, Tensor]:
    from services.models.weights import to_tensor
    from services.tensors import codec

    head = UUID_BYTES + WRAPPED_BYTES
    if len(sealed) <= head:
        raise Unreadable("the file is cut off")
    object_id = UUID(bytes=sealed[:UUID_BYTES])
    seal, body = Seal(unwrap(key, sealed[UUID_BYTES:head], object_id), object_id), sealed[head:]
    reader = _Opened(seal, lambda position, count: body[position : position + count], len(body))
    return {name: to_tensor(array) for name, array in codec.read(reader).items()}
