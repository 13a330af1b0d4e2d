"""Blobs as rows of PostgreSQL, for deployments whose replicas share no file system.

A content is a row and its chunks of up to 1 MiB, each appended in a transaction of its own; an upload becomes a blob
when one transaction flips its `complete` flag. Readers take a connection per chunk, never for the length of a download.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from coordinator.blobs.disk import pieces_of
from coordinator.blobs.port import Examined, Received, StorageFull, StoredBlob, StoredPart, sender_hash
from coordinator.blobs.reception import (
    Check,
    Memory,
    checked_range,
    examine,
    hex_of,
    not_found,
    offset_mismatch,
    receive_into,
)
from coordinator.crashpoints import crashpoint
from services.core.errors import InvariantBroken
from services.tensors.layout import MADE_HERE, UPLOADED, Bounds

CHUNK_BYTES: Final = 2**20
_LIST_PAGE: Final = 1000
_DISK_FULL: Final = "53100"

metadata = sa.MetaData()

contents = sa.Table(
    "blob_contents",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("owner", sa.Uuid, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("num_bytes", sa.BigInteger, nullable=False),
    sa.Column("complete", sa.Boolean, nullable=False),
    sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
)
# A digest names one blob of its owner.
sa.Index(
    "blob_contents_one_blob",
    contents.c.owner,
    contents.c.digest,
    unique=True,
    postgresql_where=contents.c.complete,
    sqlite_where=contents.c.complete,
)
# A sender has one unfinished upload of it.
sa.Index(
    "blob_contents_one_part",
    contents.c.owner,
    contents.c.digest,
    contents.c.sender,
    unique=True,
    postgresql_where=~contents.c.complete,
    sqlite_where=~contents.c.complete,
)

chunks = sa.Table(
    "blob_chunks",
    metadata,
    sa.Column("content_id", sa.ForeignKey(contents.c.id, ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, comment="of the chunk's first byte in the blob"),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
CHUNKS_UNCOMPRESSED: Final = "ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL"
"""Tensors hardly compress; trying costs more than writing them."""


@sa.event.listens_for(chunks, "after_create")
def _store_uncompressed(_: sa.Table, connection: sa.Connection, **__: object) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(CHUNKS_UNCOMPRESSED))


class PostgresBlobStore:
    """The engine stays its creator's to dispose of."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._memory = Memory()

    async def stat(self, owner: UUID, digest: str) -> int | None:
        content = await self._find(owner, digest)
        return None if content is None else content[1]

    async def part_size(self, owner: UUID, digest: str, sender: str) -> int | None:
        query = sa.select(contents.c.num_bytes).where(_is_part(owner, digest, sender))
        async with self._engine.connect() as connection:
            return await connection.scalar(query) or None

    async def receive(
        self, owner: UUID, digest: str, *, sender: str, offset: int, total: int, chunks: AsyncIterable[bytes]
    ) -> Received:
        return await self._receive(owner, digest, sender, offset, total, chunks, UPLOADED)

    async def _receive(
        self,
        owner: UUID,
        digest: str,
        sender: str,
        offset: int,
        total: int,
        chunks: AsyncIterable[bytes],
        bounds: Bounds,
    ) -> Received:
        return await receive_into(
            await self._open_part(owner, digest, sender, offset),
            self._memory,
            digest=digest,
            offset=offset,
            total=total,
            chunks=chunks,
            piece_bytes=CHUNK_BYTES,
            bounds=bounds,
        )

    async def open(self, owner: UUID, digest: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        blob = await self._find(owner, digest)
        if blob is None:
            raise not_found(digest)
        content_id, num_bytes = blob
        start, stop = checked_range(num_bytes, start, end)
        async for data in _read(self._engine, content_id, start, stop):
            yield data

    @contextlib.asynccontextmanager
    async def local(self, owner: UUID, digests: Iterable[str]) -> AsyncIterator[dict[str, Path]]:
        directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="lethe-blobs-"))
        try:
            paths = {}
            for digest in digests:
                paths[digest] = directory / hex_of(digest)
                async for data in self.open(owner, digest):
                    await asyncio.to_thread(_append_to, paths[digest], data)
            yield paths
        finally:
            shutil.rmtree(directory)  # on the loop: it must also happen in a cancelled task, and unlinking is quick

    async def adopt(self, owner: UUID, path: Path, examined: Examined | None = None) -> Examined:
        if examined is None:
            examined = await asyncio.to_thread(examine, path)
        digest, num_bytes = examined.digest, examined.num_bytes
        if await self._find(owner, digest) is None:
            sender = f"adopted-{uuid.uuid4()}"  # never a client's, and never that of another adoption of equal bytes
            pieces = _in_threads(pieces_of(path))
            await self._receive(owner, digest, sender, 0, num_bytes, pieces, MADE_HERE)
        path.unlink()
        return examined

    async def delete(self, owner: UUID, *digests: str) -> None:
        own = (contents.c.owner == owner) & contents.c.digest.in_(digests) & contents.c.complete
        async with self._engine.begin() as connection:
            await connection.execute(sa.delete(contents).where(own))

    async def list(self, owner: UUID) -> AsyncIterator[StoredBlob]:
        columns = (contents.c.digest, contents.c.num_bytes, contents.c.modified_at)
        query = sa.select(*columns).where(contents.c.owner == owner, contents.c.complete).order_by(contents.c.digest)
        last = ""
        while True:
            async with self._engine.connect() as connection:
                page = (await connection.execute(query.where(contents.c.digest > last).limit(_LIST_PAGE))).all()
            for digest, num_bytes, modified_at in page:
                yield StoredBlob(digest, num_bytes, modified_at)
            if len(page) < _LIST_PAGE:
                return
            last = page[-1].digest

    async def parts(self) -> Sequence[StoredPart]:
        query = sa.select(contents.c.owner, contents.c.sender, contents.c.num_bytes).where(~contents.c.complete)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        return [StoredPart(row.owner, sender_hash(row.sender), row.num_bytes) for row in rows]

    async def drop_parts(self, owner: UUID, sender: str) -> None:
        own = (contents.c.owner == owner) & (contents.c.sender == sender) & ~contents.c.complete
        async with self._engine.begin() as connection:
            await connection.execute(sa.delete(contents).where(own))

    async def sweep_parts(self, older_than_s: float, owner: UUID | None = None) -> int:
        is_old = contents.c.modified_at <= sa.func.clock_timestamp() - timedelta(seconds=older_than_s)
        swept = sa.delete(contents).where(~contents.c.complete, is_old)
        async with self._engine.begin() as connection:
            return (
                await connection.execute(swept if owner is None else swept.where(contents.c.owner == owner))
            ).rowcount

    async def probe(self) -> None:
        with _full_database_noticed():
            async with self._engine.connect() as connection:
                content_id = await connection.scalar(
                    sa.insert(contents).values(_new_part(UUID(int=0), "", "probe")).returning(contents.c.id)
                )
                await connection.execute(sa.insert(chunks).values(content_id=content_id, position=0, data=bytes(4096)))
                await connection.rollback()

    async def close(self) -> None:
        pass

    async def _find(self, owner: UUID, digest: str) -> tuple[int, int] | None:
        """(content id, bytes) of the complete blob."""
        query = sa.select(contents.c.id, contents.c.num_bytes).where(_is_blob(owner, digest))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else (row.id, row.num_bytes)

    async def _open_part(self, owner: UUID, digest: str, sender: str, offset: int) -> _RowPart:
        query = sa.select(contents.c.id, contents.c.num_bytes).where(_is_part(owner, digest, sender))
        with _full_database_noticed():
            async with self._engine.begin() as connection:
                if offset == 0:
                    new_part = insert(contents).values(_new_part(owner, digest, sender))
                    await connection.execute(new_part.on_conflict_do_nothing())
                row = (await connection.execute(query)).one_or_none()
        stored = 0 if row is None else row.num_bytes
        if row is None or stored != offset:
            raise offset_mismatch(stored)
        return _RowPart(self._engine, row.id)


class _RowPart:
    """An unfinished upload. Its row says how long it is; whoever appends moves that mark from where they left it."""

    def __init__(self, engine: AsyncEngine, content_id: int) -> None:
        self._engine = engine
        self._id = content_id

    async def append(self, at: int, pieces: list[bytes], check: Check | None) -> None:
        data = b"".join(pieces)
        await self._insert(at, data)
        if check is not None:
            await asyncio.to_thread(check.feed, data)

    async def read_back(self, check: Check) -> None:
        async with self._engine.connect() as connection:
            num_bytes = await connection.scalar(sa.select(contents.c.num_bytes).where(contents.c.id == self._id))
        async for data in _read(self._engine, self._id, 0, num_bytes or 0):
            await asyncio.to_thread(check.feed, data)

    async def commit(self, num_bytes: int) -> bool:
        crashpoint("blob.before-rename")
        flip = (
            sa.update(contents)
            .values(complete=True, modified_at=sa.func.clock_timestamp())
            .where(self._ends_at(num_bytes))
        )
        try:
            with _full_database_noticed():
                async with self._engine.begin() as connection:
                    num_flipped = (await connection.execute(flip)).rowcount
        except IntegrityError:  # another sender was quicker
            await self.discard()
            return True
        if not num_flipped:
            raise offset_mismatch(await self._stored())
        crashpoint("blob.after-rename")
        return False

    async def discard(self) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(sa.delete(contents).where(contents.c.id == self._id, ~contents.c.complete))

    async def _insert(self, at: int, data: bytes) -> None:
        grow = (
            sa.update(contents)
            .values(num_bytes=at + len(data), modified_at=sa.func.clock_timestamp())
            .where(self._ends_at(at))
        )
        with _full_database_noticed():
            async with self._engine.begin() as connection:
                if (await connection.execute(grow)).rowcount:
                    await connection.execute(sa.insert(chunks).values(content_id=self._id, position=at, data=data))
                    return
        raise offset_mismatch(await self._stored())

    def _ends_at(self, position: int) -> sa.ColumnElement[bool]:
        return sa.and_(contents.c.id == self._id, contents.c.num_bytes == position, ~contents.c.complete)

    async def _stored(self) -> int:
        async with self._engine.connect() as connection:
            query = sa.select(contents.c.num_bytes).where(contents.c.id == self._id)
            return await connection.scalar(query) or 0


async def _read(engine: AsyncEngine, content_id: int, start: int, stop: int) -> AsyncIterator[bytes]:
    """Chunk after chunk, cut to the range."""
    covering = (
        sa.select(chunks.c.position, chunks.c.data)
        .where(chunks.c.content_id == content_id, chunks.c.position <= sa.bindparam("at"))
        .order_by(chunks.c.position.desc())
        .limit(1)
    )
    while start < stop:
        async with engine.connect() as connection:
            row = (await connection.execute(covering, {"at": start})).one_or_none()
        data = b"" if row is None else row.data[start - row.position : stop - row.position]
        if not data:
            if row is None:
                raise not_found("that was being read; it was deleted meanwhile")
            raise InvariantBroken(f"content {content_id} has no byte {start}")
        start += len(data)
        yield data


def _is_blob(owner: UUID, digest: str) -> sa.ColumnElement[bool]:
    hex_of(digest)
    return sa.and_(contents.c.owner == owner, contents.c.digest == digest, contents.c.complete)


def _is_part(owner: UUID, digest: str, sender: str) -> sa.ColumnElement[bool]:
    hex_of(digest)
    named = (contents.c.owner == owner, contents.c.digest == digest, contents.c.sender == sender)
    return sa.and_(*named, ~contents.c.complete)


def _new_part(owner: UUID, digest: str, sender: str) -> dict[str, object]:
    return {
        "owner": owner,
        "digest": digest,
        "sender": sender,
        "num_bytes": 0,
        "complete": False,
        "modified_at": sa.func.clock_timestamp(),
    }


@contextlib.contextmanager
def _full_database_noticed() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _DISK_FULL:
            raise StorageFull(errno.ENOSPC, str(error.orig)) from error
        raise


def _append_to(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)


async def _in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
