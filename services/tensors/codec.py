"""Deterministic safetensors files for numpy arrays: names sorted, no metadata, so equal tensors give equal bytes.

numpy has no bfloat16. A BF16 tensor is an array of dtype `BF16`, a one-field record over its 16 bits; it survives
`read` and `write` unchanged, and `array["bits"]` is the uint16 view.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.tensors.layout import LENGTH_BYTES, Layout, TensorInfo, read_header
from services.tensors.streams import FileWriter, Stored, Writable

Array = npt.NDArray[Any]

BF16: Final = np.dtype([("bits", "<u2")])
NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "U16": np.dtype("<u2"), "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"), "BF16": BF16, "U32": np.dtype("<u4"), "I32": np.dtype("<i4"), "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"), "I64": np.dtype("<i8"), "F64": np.dtype("<f8"),
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def write(out: Writable, tensors: Mapping[str, Array]) -> None:
    infos = tuple(TensorInfo(name, dtype_name(tensors[name]), tensors[name].shape) for name in sorted(tensors))
    out.write(encode_header(Layout(infos)))
    for info in infos:
        array = np.ascontiguousarray(tensors[info.name], dtype=NUMPY_DTYPES[info.dtype])
        out.write(array.reshape(-1).view(np.uint8).data)


def write_file(path: Path, tensors: Mapping[str, Array]) -> None:
    with FileWriter(path) as out:
        write(out, tensors)


def read(stored: Stored) -> dict[str, Array]:
    return dict(iterate(stored))


def iterate(stored: Stored) -> Iterator[tuple[str, Array]]:
    """The tensors one by one in name order, for readers that must not hold all of them."""
    with closing(stored.open()) as file:
        header = read_header(file)
        for info, start in zip(header.layout.tensors, header.starts, strict=True):
            array = np.empty(info.shape, NUMPY_DTYPES[info.dtype])
            file.read_into(array.reshape(-1).view(np.uint8).data, start)
            yield info.name, array


def layout_of(stored: Stored) -> Layout:
    with closing(stored.open()) as file:
        return read_header(file).layout


def encode_header(layout: Layout) -> bytes:
    """Length and header of a file whose data are the layout's tensors in name order. Padded so that data is aligned."""
    entries: dict[str, Any] = {}
    offset = 0
    for info in layout.tensors:
        end = offset + info.num_bytes
        entries[info.name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def dtype_name(array: Array) -> str:
    try:
        return _NAMES[array.dtype.newbyteorder("<")]
    except KeyError:
        raise TypeError(f"cannot store numpy's {array.dtype}; known are {', '.join(_NAMES.values())}") from None
