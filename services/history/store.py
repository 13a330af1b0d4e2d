"""One client's update of one round, into the history and out again: coded, compressed, sealed, named by its digest.

The stored file is itself a safetensors file with one tensor of bytes, so that it lies among the other blobs. Sealed in
it are the update's layout and its coded numbers. Memory is a few slices, whatever the size of the model.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from services.core.errors import Rejected
from services.history.coding import CodingError, decode, encode
from services.history.sealing import seal, unseal
from services.history.spec import UpdateHistory
from services.tensors.codec import encode_header
from services.tensors.layout import LENGTH_BYTES, Layout, parse_header, parse_length
from services.tensors.slices import Source
from services.tensors.streams import Stored, Writable, write_all

ZLIB_LEVEL: Final = 1
"""Updates are mostly noise: more effort finds little more."""
_SIZE_BYTES: Final = 8
_HEADER_BYTES: Final = 128
"""Of the stored file: room for the size of its one tensor, which is known only at the end."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the coordinator notes of a kept update."""

    digest: str
    """Of the stored bytes, as they are on disk."""
    num_bytes: int
    largest_error: float
    relative_error: float


def keep(update: Stored, out: Path, policy: UpdateHistory, key: bytes, salt: bytes, context: bytes) -> Kept:
    """Write the stored form of `update` (safetensors) to `out`."""
    error = CodingError()
    with ExitStack() as stack:
        source = Source.open(update, stack)
        plain = chain([_encode_layout(source.header.layout)], encode(source, policy.dtype, error))
        packed = _compress(plain) if policy.compression == "zlib" else plain
        file = stack.enter_context(out.open("wb+", buffering=0))
        file.seek(_HEADER_BYTES)
        for chunk in seal(packed, key, salt, _bind(policy, context)):
            write_all(file, chunk)
        num_bytes = file.tell()
        file.seek(0)
        write_all(file, _container(num_bytes - _HEADER_BYTES))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Kept(f"sha256:{digest}", num_bytes, error.largest, error.relative)


def restore(stored: Path, out: Writable, policy: UpdateHistory, key: bytes, context: bytes, digest: str) -> None:
    """Write the update to `out`. Raises Rejected when the stored bytes are not those that were kept, or the key is not
    the one they were sealed with."""
    with stored.open("rb", buffering=0) as file:
        if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != digest:
            raise Rejected("digest-mismatch", "the stored update does not have the digest it was kept under")
        file.seek(_HEADER_BYTES)
        plain = unseal(file, key, _bind(policy, context))
        stream = _Stream(_decompress(plain) if policy.compression == "zlib" else plain)
        decode(_decode_layout(stream), policy.dtype, stream.take, out)
        stream.finish()


def _container(num_bytes: int) -> bytes:
    entry = {"sealed": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}}
    text = json.dumps(entry).encode().ljust(_HEADER_BYTES - LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


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
    """In pieces of bounded size; the bytes are authenticated, so the archive is our own."""
    unpacker = zlib.decompressobj()
    for chunk in chunks:
        while chunk:
            yield unpacker.decompress(chunk, 1 << 20)
            chunk = unpacker.unconsumed_tail
    yield unpacker.flush()


def _bind(policy: UpdateHistory, context: bytes) -> bytes:
    """Reading with another coding than the one it was written in fails like any other change."""
    return f"{policy.dtype}\x1f{policy.compression}\x1f".encode() + context
