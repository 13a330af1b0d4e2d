"""A lossy copy of one client's update, and the update again from it: coded and compressed. Whoever stores it seals it.

It begins with the update's layout, then come its coded numbers. Memory is a few slices, whatever the size of the model.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from typing import Final

from services.core.errors import Rejected
from services.history.coding import CodingError, decode, encode
from services.history.spec import UpdateHistory
from services.tensors.codec import encode_header
from services.tensors.layout import LENGTH_BYTES, Layout, parse_header, parse_length
from services.tensors.slices import Source
from services.tensors.streams import Readable, Stored, Writable

ZLIB_LEVEL: Final = 1
"""Updates are mostly noise: more effort finds little more."""
_SIZE_BYTES: Final = 8
_READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """What the coordinator notes of a kept update."""

    digest: str
    """The digest of the copy; of the update itself where that is kept as it is."""
    num_bytes: int
    largest_error: float = 0.0
    relative_error: float = 0.0


def keep(update: Stored, out: Writable, policy: UpdateHistory) -> Kept:
    """Write a copy of `update` (safetensors) to `out`."""
    error, hashed, num_bytes = CodingError(), hashlib.sha256(), 0
    with ExitStack() as stack:
        source = Source.open(update, stack)
        plain = chain([_encode_layout(source.header.layout)], encode(source, policy.dtype, error))
        for chunk in _compress(plain) if policy.compression == "zlib" else plain:
            hashed.update(chunk)
            num_bytes += len(chunk)
            out.write(chunk)
    return Kept(f"sha256:{hashed.hexdigest()}", num_bytes, error.largest, error.relative)


def restore(copy: Stored, out: Writable, policy: UpdateHistory) -> None:
    """Write the update to `out`. Raises Rejected when the copy is not one of that policy."""
    with closing(copy.open()) as readable:
        decode_copy(_pieces(readable), out, policy)


def decode_copy(pieces: Iterable[bytes], out: Writable, policy: UpdateHistory) -> None:
    stream = _Stream(_decompress(pieces) if policy.compression == "zlib" else pieces)
    decode(_decode_layout(stream), policy.dtype, stream.take, out)
    stream.finish()


def _pieces(readable: Readable) -> Iterator[bytes]:
    for start in range(0, readable.num_bytes, _READ_BYTES):
        piece = bytearray(min(_READ_BYTES, readable.num_bytes - start))
        readable.read_into(memoryview(piece), start)
        yield bytes(piece)


def _encode_layout(layout: Layout) -> bytes:
    header = encode_header(layout)
    return (len(header) + layout.data_bytes).to_bytes(_SIZE_BYTES) + header


def _decode_layout(stream: _Stream) -> Layout:
    total = int.from_bytes(stream.take(_SIZE_BYTES))
    length = parse_length(stream.take(LENGTH_BYTES), total)
    return parse_header(stream.take(length), total).layout


class _Stream:
    """Reads exact numbers of bytes from chunks of any size."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._held = bytearray()

    def take(self, num_bytes: int) -> bytes:
        while len(self._held) < num_bytes:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise Rejected("wrong-layout", "the stored update is shorter than its layout says")
            self._held += chunk
        taken = bytes(self._held[:num_bytes])
        del self._held[:num_bytes]
        return taken

    def finish(self) -> None:
        if self._held or any(self._chunks):
            raise Rejected("wrong-layout", "the stored update is longer than its layout says")


def _compress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(ZLIB_LEVEL)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()


def _decompress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress in pieces of bounded size; the bytes are authenticated, so the archive is our own."""
    unpacker = zlib.decompressobj()
    for chunk in chunks:
        while chunk:
            yield unpacker.decompress(chunk, 1 << 20)
            chunk = unpacker.unconsumed_tail
    yield unpacker.flush()
