"""The check at the door: layout and finiteness of a safetensors file while its bytes stream by, also on their way out
of a kernel.

The bytes may be cut anywhere, also inside an element. Nothing but the header is kept.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from services.core.figures import LARGEST
from services.tensors.errors import refuse
from services.tensors.layout import (
    FLOATING,
    ITEM_BYTES,
    LENGTH_BYTES,
    MADE_HERE,
    UPLOADED,
    Bounds,
    Header,
    Layout,
    parse_header,
    parse_length,
)
from services.tensors.streams import Writable

_SUMMED: Final[dict[str, np.dtype[Any]]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_EXPONENT_BITS: Final[dict[str, np.uint16]] = {"F16": np.uint16(0x7C00), "BF16": np.uint16(0x7F80)}
"""In half-width floats, NaN and Inf are the values whose exponent bits are all set."""
_LARGEST_BF16: Final = np.uint16(np.float32(LARGEST).view(np.uint32) >> 16)
"""The largest value that is let through, as bits: without their sign, half-width floats are in the order of these."""


@dataclass(frozen=True)
class Inspection:
    layout: Layout
    finite: bool
    """No NaN, no Inf, and nothing beyond `LARGEST`."""
    num_bytes: int


class Inspector:
    """Feed it the file in order, then `finish()`. Raises `Rejected("not-safetensors")` as soon as that is certain.

    `total_bytes` None: nobody announced them, and there are as many as the file's own header says.
    """

    def __init__(self, total_bytes: int | None, bounds: Bounds = UPLOADED) -> None:
        self._total_bytes = total_bytes
        self._bounds = bounds
        self._num_bytes = 0
        self._finite = True
        self._prefix = bytearray()
        self._prefix_bytes = LENGTH_BYTES
        self._header: Header | None = None
        self._segments: deque[tuple[str, int]] = deque()  # (dtype, bytes still to come), in file order
        self._split = bytearray()  # the first bytes of an element whose rest is in the next chunk

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        view = memoryview(chunk).cast("B")
        self._num_bytes += len(view)
        self._refuse_excess()
        while self._header is None and len(view):
            view = self._take_prefix(view)
        if self._header is not None and len(view):
            self._refuse_excess()
            self._take_data(view)

    def finish(self) -> Inspection:
        if self._header is None:
            parse_length(bytes(self._prefix[:LENGTH_BYTES]), self._num_bytes, self._bounds)
        if self._header is None or self._num_bytes != self._total_bytes:
            refuse(f"The file ends after {self._num_bytes} of {self._total_bytes} bytes.")
        return Inspection(self._header.layout, self._finite, self._num_bytes)

    def _refuse_excess(self) -> None:
        if self._total_bytes is not None and self._num_bytes > self._total_bytes:
            refuse(f"More than the announced {self._total_bytes} bytes arrived.")

    def _take_prefix(self, view: memoryview) -> memoryview:
        missing = self._prefix_bytes - len(self._prefix)
        self._prefix += view[:missing]
        if len(self._prefix) == LENGTH_BYTES == self._prefix_bytes:
            length = parse_length(bytes(self._prefix), self._total_bytes, self._bounds)
            if length == 0:
                refuse("The header is empty.")
            self._prefix_bytes += length
        elif len(self._prefix) == self._prefix_bytes:
            self._header = parse_header(bytes(self._prefix[LENGTH_BYTES:]), self._total_bytes, self._bounds)
            if self._total_bytes is None:
                self._total_bytes = self._header.data_start + self._header.layout.data_bytes
            self._segments = _segments(self._header)
            self._prefix.clear()
        return view[missing:]

    def _take_data(self, view: memoryview) -> None:
        while len(view):
            dtype, remaining = self._segments.popleft()
            taken = min(remaining, len(view))
            if taken < remaining:
                self._segments.appendleft((dtype, remaining - taken))
            if self._finite and dtype in FLOATING:
                self._finite = self._check(view[:taken], dtype)
            view = view[taken:]

    def _check(self, view: memoryview, dtype: str) -> bool:
        """Whole elements are judged in place; what is left of a cut one waits for the next chunk."""
        size = ITEM_BYTES[dtype]
        finite = True
        if self._split:
            missing = size - len(self._split)
            self._split += view[:missing]
            view = view[missing:]
            if len(self._split) < size:
                return True
            finite = are_moderate(bytes(self._split), dtype)
            self._split.clear()
        whole = len(view) - len(view) % size
        self._split += view[whole:]
        return finite and are_moderate(view[:whole], dtype)


class InspectingWriter:
    """Passes a new file on to another writer, hashes it and inspects it: so it need not be read back."""

    def __init__(self, out: Writable, bounds: Bounds = MADE_HERE) -> None:
        self._out = out
        self._bounds = bounds
        self._begin()

    def write(self, data: bytes | memoryview) -> None:
        self._inspector.feed(data)
        self._sha256.update(data)
        self._out.write(data)
        self.num_bytes += len(data)

    def restart(self) -> None:
        self._out.restart()
        self._begin()

    def finish(self) -> tuple[str, Inspection, int]:
        """(digest, what is in it, number of bytes), once everything was written. Rejects `not-safetensors` when that is
        not a whole file, or nothing at all."""
        inspection = self._inspector.finish()
        return f"sha256:{self._sha256.hexdigest()}", inspection, self.num_bytes

    def _begin(self) -> None:
        self._sha256 = hashlib.sha256()
        self._inspector = Inspector(None, self._bounds)
        self.num_bytes = 0


def are_moderate(elements: bytes | memoryview, dtype: str) -> bool:
    """Finite, and not beyond `LARGEST`."""
    if dtype == "F16":  # ends at 65504
        return are_finite(elements, dtype)
    if dtype == "BF16":
        return bool((np.frombuffer(elements, "<u2") & np.uint16(0x7FFF)).max(initial=0) <= _LARGEST_BF16)
    values = np.frombuffer(elements, _SUMMED[dtype])
    # The largest and the smallest of numbers with a NaN among them are NaN, and no comparison with NaN holds.
    return bool(values.max(initial=0) <= LARGEST) and bool(values.min(initial=0) >= -LARGEST)


def are_finite(elements: bytes | memoryview, dtype: str) -> bool:
    """No NaN or Inf among whole little-endian elements of a floating dtype."""
    if dtype in _EXPONENT_BITS:
        mask = _EXPONENT_BITS[dtype]
        return bool((np.frombuffer(elements, "<u2") & mask).max(initial=0) != mask)
    values = np.frombuffer(elements, _SUMMED[dtype])
    with np.errstate(over="ignore", invalid="ignore"):
        # A finite sum proves finite terms; a sum may also overflow, so the other way round it is only a suspicion.
        return bool(np.isfinite(np.add.reduce(values))) or bool(np.isfinite(values).all())


def _segments(header: Header) -> deque[tuple[str, int]]:
    """Runs of equal dtype in file order: thousands of small tensors cost as little as one large one."""
    segments: deque[tuple[str, int]] = deque()
    for _, info in sorted(zip(header.starts, header.layout.tensors, strict=True)):
        if segments and segments[-1][0] == info.dtype:
            segments[-1] = (info.dtype, segments[-1][1] + info.num_bytes)
        elif info.num_bytes:
            segments.append((info.dtype, info.num_bytes))
    return segments
