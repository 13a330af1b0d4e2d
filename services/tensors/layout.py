"""The shape of a safetensors file: which tensors it holds and where their bytes lie.

File format: 8 bytes little-endian header length, the header (JSON, padded with spaces), then the data. Parsing is
strict because the bytes come from strangers: whatever is not exactly a safetensors file is `Rejected`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from services.core import digests
from services.tensors.errors import refuse
from services.tensors.streams import Readable

ITEM_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
FLOATING: Final = frozenset({"F64", "F32", "F16", "BF16"})
MAX_RANK: Final = 32
MAX_NAME_CHARACTERS: Final = 1024
LENGTH_BYTES: Final = 8

_FOREIGN: Final = {
    b"PK\x03\x04": "This is a zip archive (torch.save writes those, with pickle inside).",
    b"\x80\x02": "This is a pickle.",
    b"\x80\x03": "This is a pickle.",
    b"\x80\x04": "This is a pickle.",
    b"\x80\x05": "This is a pickle.",
    b"\x93NUMPY": "This is a .npy file.",
    b"\x89HDF": "This is an HDF5 file.",
    b"\x1f\x8b": "This is a gzip file.",
    b"GGUF": "This is a GGUF file.",
}


class Bounds(NamedTuple):
    """What a header may cost. A file of the largest allowed takes a fraction of a second: parse it in a thread."""

    header_bytes: int
    tensors: int

    @property
    def items(self) -> int:
        """The items of JSON in a header: a tensor has six, and one for each dimension."""
        return 16 * self.tensors


UPLOADED: Final = Bounds(4 * 2**20, 16_384)
MADE_HERE: Final = Bounds(16 * 2**20, 2**20)
"""Kernels may keep tensors of every client in one file."""


class TensorInfo(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """Names, dtypes and shapes, sorted by name. Equal layouts mean that tensors can be added element by element."""

    tensors: tuple[TensorInfo, ...]

    def digest(self) -> str:
        """Takes about a microsecond per tensor. Of layouts of usual size the last few are remembered."""
        return _digest_known(self) if len(self.tensors) <= REMEMBERED_TENSORS else _digest(self)

    def updatable(self) -> Layout:
        """The layout that an update of this model must have: its floating-point tensors."""
        return Layout(tuple(info for info in self.tensors if info.dtype in FLOATING))

    @property
    def data_bytes(self) -> int:
        return sum(info.num_bytes for info in self.tensors)


def _digest(layout: Layout) -> str:
    return digests.of_json([[info.name, info.dtype, list(info.shape)] for info in layout.tensors])


REMEMBERED_TENSORS: Final = 1024
_digest_known = lru_cache(maxsize=64)(_digest)


@dataclass(frozen=True)
class Header:
    """A parsed header. `starts[i]` is where, in the file, the bytes of `layout.tensors[i]` begin."""

    layout: Layout
    starts: tuple[int, ...]
    data_start: int


def parse_length(first_bytes: bytes, total_bytes: int | None, bounds: Bounds = MADE_HERE) -> int:
    """The header's length from the first 8 bytes of a file of `total_bytes` (None: that is not known yet)."""
    for magic, what in _FOREIGN.items():
        if first_bytes.startswith(magic):
            refuse(what)
    if len(first_bytes) < LENGTH_BYTES:
        refuse(f"The file ends after {len(first_bytes)} bytes.")
    length = int.from_bytes(first_bytes[:LENGTH_BYTES], "little")
    if length > bounds.header_bytes:
        refuse(f"The header announces {length} bytes; at most {bounds.header_bytes} are allowed.")
    if total_bytes is not None and LENGTH_BYTES + length > total_bytes:
        refuse(f"The header announces {length} bytes but the file has only {total_bytes}.")
    return length


def parse_header(header: bytes, total_bytes: int | None, bounds: Bounds = MADE_HERE) -> Header:
    """`header` is the JSON part alone; `total_bytes` the size of the whole file, None if only the header tells. All
    updates of a model have the same one: those of usual size are remembered."""
    parse = _parsed_before if len(header) <= _REMEMBERED_BYTES else _parse
    return parse(header, total_bytes, bounds)


def _parse(header: bytes, total_bytes: int | None, bounds: Bounds) -> Header:
    entries = _load_json(header, bounds)
    _check_metadata(entries.pop("__metadata__", {}))
    if len(entries) > bounds.tensors:
        refuse(f"There are {len(entries)} tensors; at most {bounds.tensors} are taken.")
    data_start = LENGTH_BYTES + len(header)
    placed = sorted((_parse_entry(name, entry) for name, entry in entries.items()), key=lambda item: item[1:])
    cursor = 0
    for info, begin, end in placed:
        if begin != cursor:
            refuse(f"Tensor {info.name!r} starts at {begin} where {cursor} was expected (overlap or hole).")
        if end - begin != info.num_bytes:
            refuse(f"Tensor {info.name!r} of {info.dtype} {list(info.shape)} has {end - begin} bytes.")
        cursor = end
    if total_bytes is not None and data_start + cursor != total_bytes:
        refuse(f"The tensors end at byte {data_start + cursor} but the file has {total_bytes}.")
    placed.sort()
    return Header(
        Layout(tuple(info for info, _, _ in placed)), tuple(data_start + begin for _, begin, _ in placed), data_start
    )


_REMEMBERED_BYTES: Final = 65_536
_parsed_before = lru_cache(maxsize=16)(_parse)


def read_header(file: Readable, bounds: Bounds = MADE_HERE) -> Header:
    first_bytes = _read(file, min(LENGTH_BYTES, file.num_bytes), 0)
    length = parse_length(first_bytes, file.num_bytes, bounds)
    return parse_header(_read(file, length, LENGTH_BYTES), file.num_bytes, bounds)


def _read(file: Readable, num_bytes: int, offset: int) -> bytes:
    data = bytearray(num_bytes)
    file.read_into(memoryview(data), offset)
    return bytes(data)


def _load_json(header: bytes, bounds: Bounds) -> dict[str, Any]:
    num_objects = 0

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal num_objects
        num_objects += 1
        if max(num_objects - 2, len(pairs) - 1) > bounds.tensors:  # less the whole, and its metadata
            raise ValueError(f"more than {bounds.tensors} tensors, or entries of metadata")
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key appears twice")
        return found

    if not header.startswith(b"{"):
        refuse("The header does not start with '{'.")
    if header.count(b",") >= bounds.items:  # before anything is made of it
        refuse(f"The header lists more than {bounds.items} things; at most {bounds.tensors} tensors are taken.")
    try:
        entries = json.loads(header.decode(), object_pairs_hook=reject_duplicates)
    except (ValueError, RecursionError) as error:
        refuse(f"The header is not valid JSON ({str(error)[:200]}).")
    if not isinstance(entries, dict):
        refuse("The header is not a JSON object.")
    return entries


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        refuse("__metadata__ must map strings to strings.")


def _parse_entry(name: str, entry: Any) -> tuple[TensorInfo, int, int]:
    shown = ascii(name[:80])
    if not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        refuse(f"Tensor name {shown} is empty, too long or not printable.")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        refuse(f"Tensor {shown} needs exactly dtype, shape and data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        refuse(f"Tensor {shown} has dtype {str(dtype)[:40]!r}; known are {', '.join(ITEM_BYTES)}.")
    if not _are_sizes(shape) or len(shape) > MAX_RANK:
        refuse(f"Tensor {shown} has an impossible shape.")
    if not _are_sizes(offsets) or len(offsets) != 2:
        refuse(f"Tensor {shown} has impossible data_offsets.")
    return TensorInfo(name, dtype, tuple(shape)), offsets[0], offsets[1]


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)
