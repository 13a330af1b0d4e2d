"""Where the bytes of safetensors files come from and go to. Kernels know no paths: what they read may be sealed, and
what they write may be sealed, hashed or inspected on its way.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from services.tensors.errors import refuse


class Readable(Protocol):
    """Random access to the plain bytes of one file, until it is closed."""

    @property
    def num_bytes(self) -> int: ...

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill all of `buffer`, a view of bytes. Rejects `not-safetensors` when the file ends inside it."""

    def close(self) -> None: ...


class Stored(Protocol):
    """A file that can be opened for reading, as often as wanted."""

    def open(self) -> Readable: ...


class Writable(Protocol):
    """Takes the plain bytes of one new file, in order. There is no file before the first `write`."""

    def write(self, data: bytes | memoryview) -> None:
        """All of `data`, a view of bytes. It is not kept: the caller may change it afterwards."""

    def restart(self) -> None:
        """Forget what was written and begin again, as if it had never been."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A plain file."""

    path: Path

    def open(self) -> Readable:
        return _OpenFile(self.path)


class _OpenFile:
    """Read with preadv, which needs no position: short reads are gone on with."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.num_bytes = os.fstat(self._fd).st_size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        while len(buffer):
            num_read = os.preadv(self._fd, [buffer], offset)
            if num_read == 0:
                refuse(f"The file ends at byte {offset}, before its tensors do.")
            buffer, offset = buffer[num_read:], offset + num_read

    def close(self) -> None:
        os.close(self._fd)


class FileWriter:
    """Writes a plain file. A context manager, which closes it; nothing is created until the first write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def write(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._file = self._path.open("wb", buffering=0)
        write_all(self._file, data)

    def restart(self) -> None:
        if self._file is not None:
            self._path.unlink()
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write all bytes, also when the system takes fewer at a time."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[file.write(rest) :]
