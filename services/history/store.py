"""One client's update of one round, into the history and out again: coded, compressed, sealed, named by its digest.

Memory is a few slices, whatever the size of the model.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.errors import Rejected
from services.history.coding import CodingError, decode, encode
from services.history.sealing import seal, unseal
from services.history.spec import History
from services.tensors.layout import Layout
from services.tensors.slices import Source, write_all

ZLIB_LEVEL: Final = 1
"""Updates are mostly noise: more effort finds little more."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the coordinator notes of a kept update."""

    digest: str
    """Of the stored bytes, as they are on disk."""
    num_bytes: int
    largest_error: float
    relative_error: float


def keep(update: Path, out: Path, policy: History, key: bytes, salt: bytes, context: bytes) -> Kept:
    """Write the stored form of `update` (safetensors) to `out`."""
    error, digest, num_bytes = CodingError(), hashlib.sha256(), 0
    with ExitStack() as stack:
        coded = encode(Source.open(update, stack), policy.dtype, error)
        packed = _compress(coded) if policy.compression == "zlib" else coded
        file = stack.enter_context(out.open("wb", buffering=0))
        for chunk in seal(packed, key, salt, _bind(policy, context)):
            digest.update(chunk)
            num_bytes += len(chunk)
            write_all(file, memoryview(chunk))
    return Kept(f"sha256:{digest.hexdigest()}", num_bytes, error.largest, error.relative)


def restore(stored: Path, out: Path, layout: Layout, policy: History, key: bytes, context: bytes, digest: str) -> None:
    """Write the update, with the floating tensors of the model's `layout`, to `out`. Raises Rejected when the stored
    bytes are not those that were kept, or the key is not the one they were sealed with."""
    with stored.open("rb", buffering=0) as file:
        if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != digest:
            raise Rejected("digest-mismatch", "the stored update does not have the digest it was kept under")
        file.seek(0)
        plain = unseal(file, key, _bind(policy, context))
        stream = _Stream(_decompress(plain) if policy.compression == "zlib" else plain)
        decode(layout.updatable(), policy.dtype, stream.take, out)
        stream.finish()


class _Stream:
    """Reads exact numbers of bytes from chunks of any size."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._held = bytearray()

    def take(self, num_bytes: int) -> bytes:
        while len(self._held) < num_bytes:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise Rejected("wrong-layout", "the stored update is shorter than the model's layout")
            self._held += chunk
        taken = bytes(self._held[:num_bytes])
        del self._held[:num_bytes]
        return taken

    def finish(self) -> None:
        if self._held or any(self._chunks):
            raise Rejected("wrong-layout", "the stored update is longer than the model's layout")


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


def _bind(policy: History, context: bytes) -> bytes:
    """Reading with another coding than the one it was written in fails like any other change."""
    return f"{policy.dtype}\x1f{policy.compression}\x1f".encode() + context
