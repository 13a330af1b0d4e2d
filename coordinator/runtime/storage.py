"""Blobs as they are read and given up: found by digest, opened with the keys of their row, deleted after their row says
so."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.blobs.port import BlobStore, Missing
from coordinator.bus.port import Bus
from coordinator.engine.entities import Blob
from coordinator.runtime.blob_sealer import BlobSealer
from coordinator.runtime.transactions import transact
from coordinator.store import blobs as rows
from coordinator.store.database import Database
from services.core.errors import Rejected
from services.sealing.segments import LENGTH_BYTES, OVERHEAD, Seal, SealedReader, Unreadable
from services.tensors.errors import refuse
from services.tensors.streams import Readable, Stored, StoredFile

DROPPED_AT_ONCE: Final = 200
READ_BYTES: Final = 1 << 20
SMALL_BYTES: Final = 1 << 20
SMALL_CACHED_S: Final = 60.0
EVERY: Final = (1 << 31) - 1


def name_of(blob: Blob) -> str:
    """What its bytes lie under. An older version named plain bytes by their digest."""
    if blob.is_plain:
        assert blob.digest is not None
        return blob.digest.removeprefix("sha256:")
    return blob.id.hex


class Storage:
    def __init__(self, database: Database, blobs: BlobStore, sealer: BlobSealer, bus: Bus) -> None:
        self._database, self.blobs, self.sealer, self._bus = database, blobs, sealer, bus

    # --- reading ------------------------------------------------------------------------------------------------------

    async def find(self, federation_id: UUID, digests: Collection[str]) -> dict[str, Blob]:
        """One blob for each of the digests that are stored; of several with the same bytes one that can be read."""
        async with self._database.read() as connection:
            found = await rows.stored(connection, federation_id, digests)
        return {digest: await self.readable(some, are_newest=True) for digest, some in found.items()}

    async def readable(self, some: Sequence[Blob], *, are_newest: bool = False) -> Blob:
        """Of blobs with the same bytes the first whose key and bytes are there. If there is none, the first of all:
        whoever reads it is told what is missing. `are_newest`: there may be older ones, which do as well."""
        if len(some) > 1:
            for blob in some:
                if await self._is_readable(blob):
                    return blob
        if are_newest and len(some) == rows.NEWEST and some[0].digest is not None:
            async with self._database.read() as connection:
                every = await rows.stored(connection, some[0].federation_id, [some[0].digest], most=EVERY)
            return await self.readable([*some, *every.get(some[0].digest, ())[rows.NEWEST :]])
        return some[0]

    async def _is_readable(self, blob: Blob) -> bool:
        if not blob.is_plain:
            try:
                await self.sealer.data_key(blob)
            except Rejected:
                return False
        return await self.blobs.size(blob.federation_id, name_of(blob)) is not None

    async def pieces(self, blob: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Its plain bytes, of that range. Rejects `not-found`, `key-missing` and `blob-damaged`."""
        stop = blob.num_bytes if end is None else end
        try:
            if blob.is_plain:
                try:
                    while start < stop:
                        data = await self._read(blob, start, min(stop, start + READ_BYTES))
                        if not data:
                            raise Unreadable(f"The bytes end after {start}.")
                        start += len(data)
                        yield data
                except Missing:  # it has been sealed meanwhile
                    async for data in self._opened(await self._sealed(blob), start, stop):
                        yield data
            else:
                async for data in self._opened(blob, start, stop):
                    yield data
        except Missing:
            raise not_found(blob.digest) from None
        except Unreadable as error:
            raise damaged(blob, error) from error

    async def whole(self, blob: Blob) -> bytes:
        """All bytes of a small blob. What is cached is sealed: it says nothing to whoever has no key."""
        if blob.is_plain or blob.num_bytes > SMALL_BYTES:
            return b"".join([piece async for piece in self.pieces(blob)])
        key = cached_blob(blob.id)
        sealed = await self._bus.cache_get(key)
        if sealed is None:
            try:
                sealed = await self._read(blob, 0, blob.num_bytes + READ_BYTES)
            except Missing:
                raise not_found(blob.digest) from None
            await self._bus.cache_set(key, sealed, SMALL_CACHED_S)
        seal, found = await self.sealer.seal_of(blob), sealed
        reader = SealedReader(seal, lambda position, count: found[position : position + count], len(sealed))
        try:
            return b"".join(reader.pieces(0, blob.num_bytes))
        except Unreadable as error:
            await self._bus.cache_drop(key)
            raise damaged(blob, error) from error

    @asynccontextmanager
    async def local(self, federation_id: UUID, digests: Iterable[str]) -> AsyncIterator[dict[str, Stored]]:
        """Blobs for a kernel to read, valid inside the context. Rejects `not-found` and `key-missing`."""
        wanted = list(dict.fromkeys(digests))
        async with AsyncExitStack() as stack:
            yield await twice_if_missing(lambda: self._local(federation_id, wanted, stack))

    async def _local(self, federation_id: UUID, wanted: list[str], stack: AsyncExitStack) -> dict[str, Stored]:
        found = await self.find(federation_id, wanted)
        if missing := [digest for digest in wanted if digest not in found]:
            raise not_found(missing[0])
        files = await stack.enter_async_context(self.opened(list(found.values())))
        return {digest: files[found[digest].id] for digest in wanted}

    @asynccontextmanager
    async def opened(self, some: Collection[Blob]) -> AsyncIterator[dict[UUID, Stored]]:
        """Like `local`, for blobs that are known by id."""
        seals = {blob.id: None if blob.is_plain else await self.sealer.seal_of(blob) for blob in some}
        async with AsyncExitStack() as stack:
            files: dict[UUID, Stored] = {}
            for owner in {blob.federation_id for blob in some}:
                own = {name_of(blob): blob for blob in some if blob.federation_id == owner}
                try:
                    paths = await stack.enter_async_context(self.blobs.local(owner, own))
                except Missing as error:
                    raise not_found(own[str(error.filename)].digest) from None
                for blob in some:
                    if blob.federation_id == owner:
                        path, seal = paths[name_of(blob)], seals[blob.id]
                        files[blob.id] = StoredFile(path) if seal is None else SealedFile(path, seal)
            yield files

    async def _sealed(self, blob: Blob) -> Blob:
        """What a plain one has become."""
        assert blob.digest is not None
        found = await self.find(blob.federation_id, [blob.digest])
        if blob.digest not in found or found[blob.digest].is_plain:
            raise not_found(blob.digest)
        return found[blob.digest]

    async def _opened(self, blob: Blob, start: int, stop: int) -> AsyncIterator[bytes]:
        """Segment after segment; those before the range are passed over by their lengths."""
        seal = await self.sealer.seal_of(blob)
        held, position, offset = b"", 0, 0
        while offset < stop:
            if len(held) < LENGTH_BYTES:
                wanted = READ_BYTES if offset + READ_BYTES > start else LENGTH_BYTES
                held = await self._read(blob, position, position + wanted)
            length = int.from_bytes(held[:LENGTH_BYTES], "little")
            if not length:
                raise Unreadable(f"The sealed object ends after {offset} bytes.")
            end = length + OVERHEAD
            if offset + length > start:
                if len(held) < end:
                    held = await self._read(blob, position, position + max(end, READ_BYTES))
                plain = seal.open_segment(memoryview(held)[:end], offset)
                yield plain[max(0, start - offset) : stop - offset]
            held, position, offset = held[end:], position + end, offset + length

    async def _read(self, blob: Blob, start: int, end: int) -> bytes:
        return await self.blobs.read(blob.federation_id, name_of(blob), start, end)

    # --- giving up ----------------------------------------------------------------------------------------------------

    async def give_up(self, federation_id: UUID, ids: Collection[UUID]) -> None:
        """What was announced and is not to be stored after all: mark, commit, delete. If another gave it up before its
        last byte came, its row is gone and its bytes are not."""
        if ids:

            async def mark(connection: AsyncConnection) -> set[UUID]:
                await rows.give_up(connection, ids)
                return {blob.id for blob in await rows.by_id(connection, ids)}

            left = await transact(self._database, mark)
            await self.delete_dropped()
            await self.blobs.delete(federation_id, *(blob_id.hex for blob_id in ids if blob_id not in left))

    async def delete_dropped(self) -> int:
        """The bytes, then the rows, of all blobs that were given up; returns how many. Whoever else is at it ends the
        same."""
        num_deleted = 0
        while True:
            async with self._database.read() as connection:
                some = await rows.dropped(connection, DROPPED_AT_ONCE)
                shared = {
                    owner: await rows.still_shared(
                        connection, owner, [b.digest for b in some if b.is_plain and b.digest is not None]
                    )
                    for owner in {b.federation_id for b in some if b.is_plain}
                }
            for owner in {blob.federation_id for blob in some}:
                own = [b for b in some if b.federation_id == owner]
                await self.blobs.delete(
                    owner, *(name_of(b) for b in own if not (b.is_plain and b.digest in shared[owner]))
                )
                await self._bus.cache_drop(*(cached_blob(blob.id) for blob in own))
            if some:
                await transact(self._database, partial(rows.remove, ids=[blob.id for blob in some]))
            num_deleted += len(some)
            if len(some) < DROPPED_AT_ONCE:
                return num_deleted


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A sealed file for a kernel to read."""

    path: Path
    seal: Seal

    def open(self) -> Readable:
        return _OpenSealedFile(self.path, self.seal)


class _OpenSealedFile:
    def __init__(self, path: Path, seal: Seal) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        sealed_bytes = os.fstat(self._fd).st_size
        self._reader = SealedReader(seal, partial(_read_at, self._fd), sealed_bytes)

    @property
    def num_bytes(self) -> int:
        return self._reader.num_bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if offset + len(buffer) > self._reader.num_bytes:
            refuse(f"The file ends at byte {self._reader.num_bytes}, before its tensors do.")
        self._reader.read_into(buffer, offset)

    def close(self) -> None:
        os.close(self._fd)


def _read_at(fd: int, position: int, count: int) -> bytes:
    return os.pread(fd, count, position)


async def twice_if_missing(read: Callable[[], Awaitable[dict[str, Stored]]]) -> dict[str, Stored]:
    """What is read. If something is not found it is looked for once more: perhaps it has been sealed meanwhile."""
    try:
        return await read()
    except Rejected as rejected:
        if rejected.code != "not-found":
            raise
        return await read()


def cached_blob(blob_id: UUID) -> str:
    """The key of a small blob in the cache."""
    return f"blob:{blob_id}"


def damaged(blob: Blob, error: Unreadable) -> Rejected:
    detail = f"the stored bytes of {blob.digest} are damaged: {error} Restore the file {name_of(blob)} from a backup"
    return Rejected("blob-damaged", detail)


def not_found(digest: str | None) -> Rejected:
    return Rejected("not-found", f"There is no blob {digest} here.", digest=digest)
