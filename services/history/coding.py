"""An update as a stream of bytes of a chosen precision, and back; slice by slice.

fp32, bf16 and fp16 round to nearest. int8 stores, for each block of 1024 numbers of a tensor, a float32 scale
s = max|x| / 127 and round(x / s), so that no number is off by more than s / 2 (and what float32 loses in s). The stream
has no header: whoever decodes it knows the layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from services.core.errors import Rejected
from services.tensors.codec import encode_header
from services.tensors.layout import ITEM_BYTES, Layout
from services.tensors.slices import Bytes, Doubles, Source, narrow, slices_of, widen
from services.tensors.streams import Writable

Dtype = Literal["fp32", "bf16", "fp16", "int8"]
SLICE_ELEMENTS: Final = 64 * 1024
BLOCK_ELEMENTS: Final = 1024
"""A slice is a whole number of blocks, and both are part of the format."""
_FLOATS: Final[dict[str, str]] = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


@dataclass
class CodingError:
    """How much precision was lost: the largest error, and the L2 norm of all errors relative to that of the update."""

    largest: float = 0.0
    _squared_error: float = 0.0
    _squared: float = 0.0

    def count(self, numbers: Doubles, decoded: Doubles) -> None:
        error = decoded - numbers
        self.largest = max(self.largest, float(np.abs(error).max(initial=0.0)))
        self._squared_error += float(np.add.reduce(np.square(error)))
        self._squared += float(np.add.reduce(np.square(numbers)))

    @property
    def relative(self) -> float:
        return math.sqrt(self._squared_error / self._squared) if self._squared else 0.0


def encode(update: Source, dtype: Dtype, error: CodingError) -> Iterator[bytes]:
    """Chunks of the coded update; `error` is complete when they are exhausted."""
    for info in update.header.layout.tensors:
        for first, count in slices_of(info, SLICE_ELEMENTS):
            raw, numbers = np.empty(count * ITEM_BYTES[info.dtype], np.uint8), np.empty(count)
            update.read(raw.data, info.name, first * ITEM_BYTES[info.dtype])
            widen(raw, info.dtype, numbers)
            if not np.isfinite(numbers).all():
                raise Rejected("not-finite", f"tensor {info.name!r} of the update contains NaN or Inf")
            chunk = _encode_slice(numbers, dtype)
            decoded = _decode_slice(chunk, count, dtype)
            if not np.isfinite(decoded).all():
                raise Rejected("not-finite", f"tensor {info.name!r} does not fit into {dtype}; use bf16 or fp32")
            error.count(numbers, decoded)
            yield chunk


def decode(layout: Layout, dtype: Dtype, read: Callable[[int], bytes], out: Writable) -> None:
    """Write the update with this layout to `out`; `read(n)` gives the next n bytes of the stream."""
    out.write(encode_header(layout))
    for info in layout.tensors:
        for _, count in slices_of(info, SLICE_ELEMENTS):
            numbers = _decode_slice(read(coded_bytes(count, dtype)), count, dtype)
            raw = np.empty(count * ITEM_BYTES[info.dtype], np.uint8)
            with np.errstate(over="ignore"):
                narrow(numbers, info.dtype, raw)
            out.write(raw.data)


def coded_bytes(count: int, dtype: Dtype) -> int:
    """The number of coded bytes of one slice."""
    if dtype == "int8":
        return math.ceil(count / BLOCK_ELEMENTS) * 4 + count
    return count * ITEM_BYTES[_FLOATS[dtype]]


def _encode_slice(numbers: Doubles, dtype: Dtype) -> bytes:
    if dtype != "int8":
        raw = np.empty(len(numbers) * ITEM_BYTES[_FLOATS[dtype]], np.uint8)
        with np.errstate(over="ignore"):
            narrow(numbers, _FLOATS[dtype], raw)
        return raw.tobytes()
    blocks = _blocks(numbers)
    with np.errstate(over="ignore"):
        scales = (np.abs(blocks).max(axis=1) / 127).astype("<f4")
    divisors = np.where(scales > 0, scales, 1.0)[:, np.newaxis]
    with np.errstate(invalid="ignore"):
        codes = np.clip(np.rint(blocks / divisors), -127, 127).astype(np.int8).reshape(-1)[: len(numbers)]
    coded: bytes = scales.tobytes() + codes.tobytes()
    return coded


def _decode_slice(chunk: bytes, count: int, dtype: Dtype) -> Doubles:
    numbers = np.empty(count)
    if dtype != "int8":
        raw: Bytes = np.frombuffer(chunk, np.uint8)
        widen(raw, _FLOATS[dtype], numbers)
        return numbers
    num_scales = math.ceil(count / BLOCK_ELEMENTS)
    scales = np.frombuffer(chunk, "<f4", num_scales).astype(np.float64)
    codes: npt.NDArray[Any] = np.frombuffer(chunk, np.int8, count, num_scales * 4)
    decoded: Doubles = codes * np.repeat(scales, BLOCK_ELEMENTS)[:count]
    return decoded


def _blocks(numbers: Doubles) -> Doubles:
    padded = np.zeros(math.ceil(len(numbers) / BLOCK_ELEMENTS) * BLOCK_ELEMENTS)
    padded[: len(numbers)] = numbers
    return padded.reshape(-1, BLOCK_ELEMENTS)
