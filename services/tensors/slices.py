"""Reading and writing safetensors slice by slice, with buffers of a fixed size, in float64.

Files are read into buffers, not mapped, so that resident memory stays flat whatever the number and size of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from services.tensors.codec import NUMPY_DTYPES
from services.tensors.layout import Header, TensorInfo, read_header
from services.tensors.streams import Readable, Stored

SLICE_ELEMENTS: Final = 128 * 1024
MAX_OPEN_FILES: Final = 256

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]


@dataclass
class Source:
    """One input. `file` is None beyond `MAX_OPEN_FILES` inputs: then each read opens it again."""

    stored: Stored
    header: Header
    starts: dict[str, int]
    file: Readable | None

    @classmethod
    def open(cls, stored: Stored, stack: ExitStack, keep_open: bool = True) -> Source:
        with ExitStack() as opening:
            file = opening.enter_context(closing(stored.open()))
            header = read_header(file)
            if keep_open:
                stack.push(opening.pop_all())
        starts = {info.name: start for info, start in zip(header.layout.tensors, header.starts, strict=True)}
        return cls(stored, header, starts, file if keep_open else None)

    def read(self, buffer: memoryview, name: str, offset: int) -> None:
        start = self.starts[name] + offset
        if self.file is not None:
            self.file.read_into(buffer, start)
            return
        with closing(self.stored.open()) as file:
            file.read_into(buffer, start)


def open_sources(digests: Sequence[str], inputs: Mapping[str, Stored], stack: ExitStack) -> dict[str, Source]:
    distinct = dict.fromkeys(digests)
    return {
        digest: Source.open(inputs[digest], stack, keep_open=index < MAX_OPEN_FILES)
        for index, digest in enumerate(distinct)
    }


@dataclass(frozen=True)
class Buffers:
    raw: Bytes
    term: Doubles
    mean: Doubles

    @classmethod
    def allocate(cls, slice_elements: int) -> Buffers:
        return cls(np.empty(slice_elements * 8, np.uint8), np.empty(slice_elements), np.empty(slice_elements))


def slices_of(info: TensorInfo, slice_elements: int) -> Iterator[tuple[int, int]]:
    """(first element, number of elements) of each slice of a tensor."""
    for first in range(0, info.num_elements, slice_elements):
        yield first, min(slice_elements, info.num_elements - first)


def widen(raw: Bytes, dtype: str, doubles: Doubles) -> None:
    if dtype == "BF16":
        doubles[:] = (raw.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")
    else:
        doubles[:] = raw.view(NUMPY_DTYPES[dtype])


def narrow(doubles: Doubles, dtype: str, raw: Bytes) -> None:
    """Round to nearest, ties to even. BF16 goes through float32, as torch does."""
    if dtype == "BF16":
        bits = doubles.astype("<f4").view("<u4").astype("<u8")
        raw.view("<u2")[:] = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    else:
        raw.view(NUMPY_DTYPES[dtype])[:] = doubles
