"""How an upload becomes a blob: gather, check, seal, append, record.

Bytes are hashed, inspected and sealed as they are written; a small body is hashed and inspected while its announcement
is under way. An upload that was resumed, or begins with a large header, is read back once at its end instead: a blob
sent in many small requests still costs time in proportion to its size, and many slow uploads cost little memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.blobs.disk import Batches
from coordinator.blobs.port import BlobStore, Missing, Moved, StorageFull
from coordinator.crashpoints import crashpoint
from coordinator.engine.entities import Blob
from coordinator.runtime.storage import Storage, name_of
from services.core.errors import Rejected
from services.sealing.segments import LENGTH_BYTES as SEGMENT_LENGTH_BYTES
from services.sealing.segments import OVERHEAD, Seal, SealedReader, Unreadable, whole_segment
from services.tensors.inspection import Inspection, Inspector
from services.tensors.layout import LENGTH_BYTES, UPLOADED, Bounds

PIECE_BYTES: Final = 2**20
"""Each piece is one trip to a thread; with smaller ones the trips cost more CPU than the hashing."""
MOST_HELD_BYTES: Final = 64 << 20
SMALL_PIECE_BYTES: Final = 64 << 10
LARGE_HEADER_BYTES: Final = 256 << 10
"""A header is held until it is complete. A larger one is not held while it arrives, but read back at the end."""
REMEMBERED_PARTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Partial:
    """The stream ended early; `offset` bytes are stored and the upload may go on from there."""

    offset: int


@dataclass(frozen=True, slots=True)
class Complete:
    """All bytes are durable and were checked."""

    inspection: Inspection


Received = Partial | Complete


class Check:
    """Digest and inspection of bytes fed in order. Takes about 1 ms per MiB: feed it off the event loop."""

    def __init__(self, total: int, bounds: Bounds = UPLOADED) -> None:
        self._sha256 = hashlib.sha256()
        self._inspector = Inspector(total, bounds)

    def feed(self, data: bytes) -> None:
        self._sha256.update(data)
        self._inspector.feed(data)

    def finish(self, digest: str) -> Inspection:
        """Rejects `digest-mismatch` and `not-safetensors`."""
        actual = f"sha256:{self._sha256.hexdigest()}"
        if actual != digest:
            raise Rejected("digest-mismatch", f"The bytes received have the digest {actual}.", actual=actual)
        return self._inspector.finish()


class Memory:
    """What all uploads may hold of their bodies together. Nobody waits for it: who finds no room goes on in small
    pieces, which cost more time and hardly any memory. So slow senders cannot keep others from sending."""

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


class Ends:
    """Where the parts end that this process has seen: (plain bytes, sealed bytes) by blob. Whole segments never change
    under the name of their blob, so whoever goes on with a part looks only at what came since. The oldest are
    forgotten; then the part is walked through again."""

    def __init__(self, most: int = REMEMBERED_PARTS) -> None:
        self._ends, self._most = dict[UUID, tuple[int, int]](), most

    def of(self, blob: Blob) -> tuple[int, int]:
        return self._ends.get(blob.id, (0, 0))

    def note(self, blob: Blob, plain: int, sealed: int) -> None:
        self.forget(blob)
        self._ends[blob.id] = plain, sealed
        if len(self._ends) > self._most:
            del self._ends[next(iter(self._ends))]

    def forget(self, blob: Blob) -> None:
        self._ends.pop(blob.id, None)


@dataclass(frozen=True, slots=True)
class HeldBody:
    """A small body that is all there. It can be read like any other."""

    content: bytes
    checking: asyncio.Future[Inspection] | None
    """The check that has begun; None: it is checked before it is written."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content


class UploadReceiver:
    def __init__(self, storage: Storage) -> None:
        self._storage, self._memory, self._ends = storage, Memory(), Ends()
        self._checks: Batches[tuple[bytes, str], Inspection] = Batches(asyncio.to_thread, _checked_all)

    @property
    def _blobs(self) -> BlobStore:
        return self._storage.blobs

    async def part_bytes(self, blob: Blob) -> int:
        """How many of its plain bytes have arrived, up to the last whole segment."""
        plain, _, _ = await self._part(blob)
        return plain

    @contextlib.asynccontextmanager
    async def held(
        self, digest: str, total: int, chunks: AsyncIterable[bytes], offset: int | None
    ) -> AsyncIterator[AsyncIterable[bytes]]:
        """The same body to receive. A small whole one is taken first, and its check begins: other threads check while
        this one announces the blob."""
        if offset is not None:
            yield chunks
            return
        async with self._held(total, chunks) as body:
            if isinstance(body, HeldBody):
                checking = self._checks.add((body.content, digest))
                checking.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may ask for it
                body = HeldBody(body.content, checking)
            yield body

    @contextlib.asynccontextmanager
    async def _held(self, total: int, chunks: AsyncIterable[bytes]) -> AsyncIterator[AsyncIterable[bytes]]:
        is_small = total <= PIECE_BYTES
        with self._memory.lent(total if is_small else 0) as is_lent:
            if is_small and is_lent:
                content, chunks = await taken(chunks, total)
                if len(content) == total:
                    chunks = HeldBody(content, None)
            yield chunks

    async def receive(
        self, blob: Blob, total: int, chunks: AsyncIterable[bytes], offset: int | None = None
    ) -> Received:
        """Append a stream to an announced blob; at `total` bytes check them all and make them durable. Without an
        offset the stream has all bytes, and what an earlier upload has left of them is passed over.

        What arrived stays when `chunks` raises. Rejects `upload-offset-mismatch` (with `offset=` the stored bytes) when
        what is stored does not end at `offset`, when another upload has moved on meanwhile, and when what was stored
        did not fit and was dropped. Rejects `too-large`, `digest-mismatch` and `not-safetensors`, and raises
        `StorageFull`: then the blob is given up.
        """
        if blob.num_bytes != total:
            await self._storage.give_up(blob.federation_id, [blob.id])
            raise _send_again(f"{blob.num_bytes} bytes were announced before, which were dropped")
        if offset is None:
            return await self._receive_whole(blob, total, chunks)
        return await self._receive_from(blob, offset, total, chunks)

    async def _receive_whole(self, blob: Blob, total: int, chunks: AsyncIterable[bytes]) -> Received:
        if isinstance(chunks, HeldBody):
            return await self._receive_held(blob, total, chunks)
        async with self._held(total, chunks) as body:
            return await self._receive_held(blob, total, body)

    async def _receive_held(self, blob: Blob, total: int, chunks: AsyncIterable[bytes]) -> Received:
        if isinstance(chunks, HeldBody):
            with contextlib.suppress(Moved):  # an earlier upload has left something
                return await self._receive_small(blob, chunks)
        stored = await self.part_bytes(blob)
        try:
            return await self._receive_from(blob, stored, total, _after(chunks, stored))
        except Rejected as rejected:
            if stored and rejected.code in ("digest-mismatch", "not-safetensors", "too-large"):
                raise _send_again("what an earlier upload had left did not fit and was dropped") from rejected
            raise

    async def _receive_from(self, blob: Blob, offset: int, total: int, chunks: AsyncIterable[bytes]) -> Received:
        seal = await self._storage.sealer.seal_of(blob)
        async with self._giving_up(blob):
            with self._memory.lent(PIECE_BYTES) as is_lent:
                groups = _gather(chunks, PIECE_BYTES if is_lent else SMALL_PIECE_BYTES)
                return await self._receive_large(blob, seal, offset, total, groups)

    @contextlib.asynccontextmanager
    async def _giving_up(self, blob: Blob) -> AsyncIterator[None]:
        """Give the blob up when it is refused, unless it belongs to another upload that has moved on."""
        try:
            yield
        except (Rejected, StorageFull) as error:
            if not isinstance(error, Rejected) or error.code != "upload-offset-mismatch":
                self._ends.forget(blob)
                await self._storage.give_up(blob.federation_id, [blob.id])
            raise

    async def _receive_small(self, blob: Blob, body: HeldBody) -> Received:
        """Bodies that are all there are written many at a time. Raises Moved."""
        seal, content, found = await self._storage.sealer.seal_of(blob), body.content, list[Inspection]()

        def produce() -> bytes:
            if not found:
                found.append(_checked_body(content, _digest(blob)))
            return seal.seal(content, 0)

        async with self._giving_up(blob):
            if body.checking is not None:
                found.append(await body.checking)
            await self._blobs.write(blob.federation_id, name_of(blob), len(content), produce)
        return Complete(found[0])

    async def _receive_large(
        self, blob: Blob, seal: Seal, offset: int, total: int, groups: AsyncIterator[list[bytes]]
    ) -> Received:
        check = None if offset else Check(total)
        if offset > total:
            raise Rejected("too-large", f"{offset} bytes are stored, which is more than the announced {total}.")
        position = await self._resumed(blob, offset)
        async for pieces in groups:
            end = offset + sum(map(len, pieces))
            if end > total:
                raise Rejected("too-large", f"More than the announced {total} bytes arrived.")
            if not offset and LARGE_HEADER_BYTES < _header_bytes(pieces) <= UPLOADED.header_bytes:
                check = None
            produce = partial(_sealed, pieces, seal, offset, check)
            try:
                wanted = total - offset
                position = await self._blobs.append(blob.federation_id, name_of(blob), position, wanted, produce)
            except Moved:
                raise offset_mismatch(await self.part_bytes(blob)) from None
            if offset < total / 2 <= end:
                crashpoint("blob.half-received")
            offset = end
            self._ends.note(blob, offset, position)
        if offset < total:
            return Partial(offset)
        self._ends.forget(blob)
        crashpoint("blob.before-sync")
        try:
            await self._blobs.sync(blob.federation_id, name_of(blob))
        except Missing:
            raise offset_mismatch(0) from None
        if check is None:
            return Complete(await self._read_back(blob, seal, total))
        return Complete(check.finish(_digest(blob)))

    async def _resumed(self, blob: Blob, offset: int) -> int:
        """Where the sealed bytes end that hold the first `offset` plain ones; what a crash left torn is cut off."""
        plain, sealed, stored = await self._part(blob)
        if plain != offset:
            raise offset_mismatch(plain)
        if stored > sealed:
            try:
                await self._blobs.truncate(blob.federation_id, name_of(blob), stored, sealed)
            except Moved:
                raise offset_mismatch(await self.part_bytes(blob)) from None
        return sealed

    async def _part(self, blob: Blob) -> tuple[int, int, int]:
        """(plain, sealed bytes of whole segments, stored bytes). From where this process last saw it end, it is walked
        through from length to length."""
        owner, name = blob.federation_id, name_of(blob)
        stored = await self._blobs.size(owner, name) or 0
        plain, sealed = self._ends.of(blob)
        if sealed > stored:
            plain, sealed = 0, 0
        try:
            while stored - sealed > OVERHEAD:
                head = await self._blobs.read(owner, name, sealed, sealed + SEGMENT_LENGTH_BYTES)
                if not (length := whole_segment(head, stored - sealed)):
                    break
                plain, sealed = plain + length, sealed + length + OVERHEAD
        except Missing:  # given up meanwhile
            plain, sealed, stored = 0, 0, 0
        self._ends.note(blob, plain, sealed)
        return plain, sealed, stored

    async def _read_back(self, blob: Blob, seal: Seal, total: int) -> Inspection:
        async with self._blobs.local(blob.federation_id, [name_of(blob)]) as paths:
            return await asyncio.to_thread(_checked, paths[name_of(blob)], seal, total, _digest(blob))


def _checked_all(bodies: Sequence[tuple[bytes, str]]) -> list[Inspection | Exception]:
    found: list[Inspection | Exception] = []
    for content, digest in bodies:
        try:
            found.append(_checked_body(content, digest))
        except Exception as error:
            found.append(error)
    return found


def _checked_body(content: bytes, digest: str) -> Inspection:
    check = Check(len(content))
    check.feed(content)
    return check.finish(digest)


def _digest(blob: Blob) -> str:
    assert blob.digest is not None
    return blob.digest


def _sealed(pieces: list[bytes], seal: Seal, offset: int, check: Check | None) -> bytes:
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if check is not None:
        check.feed(data)
    return seal.seal(data, offset)


def _checked(path: Path, seal: Seal, total: int, digest: str) -> Inspection:
    check = Check(total)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        reader = SealedReader(seal, lambda position, count: os.pread(fd, count, position), os.fstat(fd).st_size)
        for piece in reader.pieces(0, total):
            check.feed(piece)
    except Unreadable as error:  # torn by a crash in the middle of a segment
        raise Rejected("digest-mismatch", f"What was stored is damaged: {error}") from error
    finally:
        os.close(fd)
    return check.finish(digest)


def offset_mismatch(stored: int) -> Rejected:
    return Rejected("upload-offset-mismatch", f"The stored part has {stored} bytes; go on from there.", offset=stored)


def _send_again(because: str) -> Rejected:
    return Rejected("upload-offset-mismatch", f"{because}; send everything again", offset=0)


async def _after(chunks: AsyncIterable[bytes], num_skipped: int) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        if num_skipped < len(chunk):
            yield chunk[num_skipped:]
        num_skipped = max(0, num_skipped - len(chunk))


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
