"""How an upload becomes a blob, whatever stores it: gather, append, check, commit.

Bytes are hashed and inspected as they are written. An upload that was resumed, or begins with a large header, is read
back once at its end instead: a blob sent in many small requests still costs time in proportion to its size, and many
slow uploads cost little memory.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from pathlib import Path
from typing import Final, Protocol

from coordinator.blobs.disk import pieces_of
from coordinator.blobs.port import Complete, Examined, Partial, Received, StorageFull
from coordinator.crashpoints import crashpoint
from services.core.digests import is_digest
from services.core.errors import Rejected
from services.tensors.inspection import Inspection, Inspector
from services.tensors.layout import LENGTH_BYTES, MADE_HERE, UPLOADED, Bounds

MOST_HELD_BYTES: Final = 64 << 20
SMALL_PIECE_BYTES: Final = 64 << 10
LARGE_HEADER_BYTES: Final = 256 << 10
"""A header is held until it is complete. A larger one is not held while it arrives, but read back at the end."""


class Check:
    """Digest and inspection of bytes fed in order. Takes about 1 ms per MiB: feed it off the event loop."""

    def __init__(self, total: int, bounds: Bounds = UPLOADED) -> None:
        self._sha256 = hashlib.sha256()
        self._inspector = Inspector(total, bounds)

    def feed(self, data: bytes) -> None:
        self._sha256.update(data)
        self._inspector.feed(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha256.hexdigest()}"

    def finish(self) -> Inspection:
        return self._inspector.finish()


def examine(path: Path) -> Examined:
    check = Check(path.stat().st_size, MADE_HERE)
    for data in pieces_of(path):
        check.feed(data)
    inspection = check.finish()
    return Examined(check.digest, inspection, inspection.num_bytes)


class Part(Protocol):
    """One sender's unfinished upload in some store, opened at its end."""

    async def append(self, at: int, pieces: list[bytes], check: Check | None) -> None:
        """Store the pieces and feed the check. Rejects `upload-offset-mismatch` unless the part ends at `at`."""

    async def read_back(self, check: Check) -> None:
        """Feed everything stored to the check."""

    async def commit(self, num_bytes: int) -> bool:
        """Make it the blob, durably; True when the blob was there already."""

    async def discard(self) -> None: ...


class Memory:
    """What the uploads of a store may hold of their bodies, all together. Nobody waits for it: who finds no room goes
    on in small pieces, which cost more time and hardly any memory. So slow senders cannot keep others from sending."""

    def __init__(self, num_bytes: int = MOST_HELD_BYTES) -> None:
        self._free = num_bytes

    @contextlib.contextmanager
    def lent(self, wanted: int) -> Iterator[bool]:
        """Whether so many bytes may be held within the context."""
        is_lent = wanted <= self._free
        self._free -= wanted if is_lent else 0
        try:
            yield is_lent
        finally:
            self._free += wanted if is_lent else 0


async def receive_into(
    part: Part,
    memory: Memory,
    *,
    digest: str,
    offset: int,
    total: int,
    chunks: AsyncIterable[bytes],
    piece_bytes: int,
    bounds: Bounds = UPLOADED,
) -> Received:
    with memory.lent(piece_bytes) as is_lent:
        size = piece_bytes if is_lent else min(piece_bytes, SMALL_PIECE_BYTES)
        return await _receive_into(part, digest, offset, total, _gather(chunks, size), bounds)


async def _receive_into(
    part: Part, digest: str, offset: int, total: int, groups: AsyncIterator[list[bytes]], bounds: Bounds
) -> Received:
    check = None if offset else Check(total, bounds)
    try:
        if offset > total:
            raise Rejected("too-large", f"{offset} bytes are stored, which is more than the announced {total}.")
        async for pieces in groups:
            end = offset + sum(map(len, pieces))
            if end > total:
                raise Rejected("too-large", f"More than the announced {total} bytes arrived.")
            if not offset and LARGE_HEADER_BYTES < _header_bytes(pieces) <= bounds.header_bytes:
                check = None
            await part.append(offset, pieces, check)
            if offset < total / 2 <= end:
                crashpoint("blob.half-received")
            offset = end
        if offset < total:
            return Partial(offset)
        if check is None:
            check = Check(total, bounds)
            await part.read_back(check)
        if check.digest != digest:
            raise digest_mismatch(check.digest)
        inspection = check.finish()
        existed = await part.commit(total)
        return Complete(inspection, total, existed)
    except Rejected as rejected:
        if rejected.code != "upload-offset-mismatch":  # then the part belongs to whoever moved on
            await part.discard()
        raise
    except StorageFull:
        await part.discard()
        raise


def _header_bytes(pieces: list[bytes]) -> int:
    """The length of the header, as the first pieces of a file announce it."""
    first = b""
    for piece in pieces:
        first += piece[: LENGTH_BYTES - len(first)]
        if len(first) == LENGTH_BYTES:
            break
    return int.from_bytes(first, "little")


async def _gather(chunks: AsyncIterable[bytes], piece_bytes: int) -> AsyncIterator[list[bytes]]:
    """Chunks in groups of at most `piece_bytes`. When the stream breaks, the last group comes before the error."""
    held: list[bytes] = []
    num_held = 0
    try:
        async for chunk in chunks:
            for start in range(0, len(chunk), piece_bytes):
                piece = chunk if len(chunk) <= piece_bytes else chunk[start : start + piece_bytes]
                if num_held + len(piece) > piece_bytes:
                    yield held
                    held, num_held = [], 0
                held.append(piece)
                num_held += len(piece)
    except Exception:
        if held:
            yield held
        raise
    if held:
        yield held


async def taken(chunks: AsyncIterable[bytes], most: int) -> tuple[bytes, AsyncIterator[bytes]]:
    """What a stream brings, up to a little over `most` bytes (nothing if it breaks), and the stream as if nothing had
    been taken from it."""
    held, num_held = [], 0
    source, broken = aiter(chunks), None
    try:
        while num_held <= most:
            held.append(await anext(source))
            num_held += len(held[-1])
    except StopAsyncIteration:
        pass
    except Exception as error:
        broken = error

    async def again() -> AsyncIterator[bytes]:
        for chunk in held:
            yield chunk
        if broken is not None:
            raise broken
        async for chunk in source:
            yield chunk

    return b"".join(held) if broken is None else b"", again()


def hex_of(digest: str) -> str:
    """The part of a digest that may name a file; whatever is not a digest names nothing."""
    if not is_digest(digest):
        raise not_found(digest)
    return digest.removeprefix("sha256:")


def digest_mismatch(actual: str) -> Rejected:
    return Rejected("digest-mismatch", f"The bytes received have the digest {actual}.", actual=actual)


def offset_mismatch(stored: int) -> Rejected:
    return Rejected("upload-offset-mismatch", f"The stored part has {stored} bytes; go on from there.", offset=stored)


def not_found(digest: str) -> Rejected:
    return Rejected("not-found", f"There is no blob {digest} here.", digest=digest)


def checked_range(num_bytes: int, start: int, end: int | None) -> tuple[int, int]:
    stop = num_bytes if end is None else end
    if not 0 <= start <= stop <= num_bytes:
        raise Rejected("range-not-satisfiable", f"The blob has {num_bytes} bytes.", num_bytes=num_bytes)
    return start, stop
