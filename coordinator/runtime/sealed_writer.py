"""What kernels write: sealed before it reaches the disk, under a key that is in no row before the blob is announced. So
what a killed process leaves behind is noise."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from services.core.private_files import open_private
from services.sealing.segments import SEGMENT_BYTES, Seal
from services.tensors.streams import write_all

HELD_BYTES: Final = 4 * SEGMENT_BYTES


class SealedWriter:
    """A context manager, which writes the rest and closes; nothing is created until something is written."""

    def __init__(self, path: Path, seal: Seal) -> None:
        self._path, self._seal = path, seal
        self._file: FileIO | None = None
        self._held = bytearray()
        self._offset = 0

    @property
    def is_empty(self) -> bool:
        return self._offset == 0 and not self._held

    def write(self, data: bytes | memoryview) -> None:
        self._held += data
        if len(self._held) >= HELD_BYTES:
            whole = len(self._held) // SEGMENT_BYTES * SEGMENT_BYTES
            self._flush(whole)

    def restart(self) -> None:
        self._held.clear()
        self._offset = 0
        if self._file is not None:
            self._file.truncate(0)
            self._file.seek(0)

    def close(self) -> None:
        if self._held:
            self._flush(len(self._held))
        if self._file is not None:
            self._file.close()
            self._file = None

    def _flush(self, num_bytes: int) -> None:
        if self._file is None:
            self._file = open_private(self._path)
        with memoryview(self._held) as held:
            sealed = self._seal.seal(held[:num_bytes], self._offset)
        write_all(self._file, sealed)
        del self._held[:num_bytes]
        self._offset += num_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._held.clear()
        self.close()
