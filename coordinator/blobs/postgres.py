"""Blobs as rows of PostgreSQL, for deployments whose replicas share no file system.

A content is a row and its chunks, each appended in a transaction of its own. Readers take a connection per chunk, never
for the length of a download.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from coordinator.blobs.disk import pieces_of
from coordinator.blobs.port import Missing, Moved, Produce, StorageFull, StoredBytes
from coordinator.crashpoints import crashpoint

CHUNK_BYTES: Final = 2**20
_LIST_PAGE: Final = 1000
_DISK_FULL: Final = "53100"

metadata = sa.MetaData()

contents = sa.Table(
    "blob_contents",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("owner", sa.Uuid, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("num_bytes", sa.BigInteger, nullable=False),
    sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
)
sa.Index("blob_contents_one_name", contents.c.owner, contents.c.name, unique=True)

chunks = sa.Table(
    "blob_chunks",
    metadata,
    sa.Column("content_id", sa.ForeignKey(contents.c.id, ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, comment="of the chunk's first byte in the blob"),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
CHUNKS_UNCOMPRESSED: Final = "ALTER TABLE blob_chunks ALTER COLUMN data SET STORAGE EXTERNAL"
"""Sealed bytes do not compress; trying costs more than writing them."""


@sa.event.listens_for(chunks, "after_create")
def _store_uncompressed(_: sa.Table, connection: sa.Connection, **__: object) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(CHUNKS_UNCOMPRESSED))


class PostgresBlobStore:
    """The engine stays its creator's to dispose of."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def size(self, owner: UUID, name: str) -> int | None:
        async with self._engine.connect() as connection:
            return await _size(connection, owner, name)

    async def append(self, owner: UUID, name: str, at: int, wanted_bytes: int, produce: Produce) -> int:
        data = await asyncio.to_thread(produce)
        grow = (
            sa.update(contents)
            .values(num_bytes=at + len(data), modified_at=sa.func.clock_timestamp())
            .where(_is(owner, name), contents.c.num_bytes == at)
            .returning(contents.c.id)
        )
        with _full_database_noticed():
            async with self._engine.begin() as connection:
                if at == 0:
                    await connection.execute(insert(contents).values(_new(owner, name)).on_conflict_do_nothing())
                content_id = (await connection.execute(grow)).scalar_one_or_none()
                if content_id is not None:
                    pieces = range(0, len(data), CHUNK_BYTES)
                    rows = [
                        {"content_id": content_id, "position": at + start, "data": data[start : start + CHUNK_BYTES]}
                        for start in pieces
                    ]
                    await connection.execute(sa.insert(chunks), rows)
                    return at + len(data)
        raise Moved(await self.size(owner, name) or 0)

    async def truncate(self, owner: UUID, name: str, at: int, to: int) -> None:
        """Nothing is ever half-written here."""
        raise Moved(await self.size(owner, name) or 0)

    async def sync(self, owner: UUID, name: str) -> None:
        """Every transaction is durable."""
        if await self.size(owner, name) is None:
            raise Missing(name)

    async def write(self, owner: UUID, name: str, wanted_bytes: int, produce: Produce) -> None:
        await self.append(owner, name, 0, wanted_bytes, produce)
        crashpoint("blob.before-sync")

    async def read(self, owner: UUID, name: str, start: int, end: int) -> bytes:
        pieces = []
        async with self._engine.connect() as connection:
            stop = await _size(connection, owner, name)
            if stop is None:
                raise Missing(name)
            while start < min(end, stop):
                wanted = {"owner": owner, "name": name, "at": start, "most": min(end - start, CHUNK_BYTES)}
                data = (await connection.execute(_COVERING, wanted)).scalar_one_or_none()
                if not data:
                    raise Missing(name)  # deleted meanwhile
                start += len(data)
                pieces.append(data)
        return b"".join(pieces)

    @contextlib.asynccontextmanager
    async def local(self, owner: UUID, names: Iterable[str]) -> AsyncIterator[dict[str, Path]]:
        directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="lethe-blobs-"))
        try:
            paths = {}
            for name in names:
                paths[name] = directory / name
                start = 0
                while data := await self.read(owner, name, start, start + CHUNK_BYTES):
                    await asyncio.to_thread(_append_to, paths[name], data)
                    start += len(data)
            yield paths
        finally:
            shutil.rmtree(directory)  # on the loop: it must also happen in a cancelled task, and unlinking is quick

    async def adopt(self, owner: UUID, name: str, path: Path) -> None:
        at, pieces = 0, pieces_of(path)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            at = await self.append(owner, name, at, len(piece), piece.__bytes__)
        path.unlink()

    async def delete(self, owner: UUID, *names: str) -> None:
        if names:
            async with self._engine.begin() as connection:
                own = (contents.c.owner == owner) & contents.c.name.in_(names)
                await connection.execute(sa.delete(contents).where(own))

    async def list(self) -> AsyncIterator[StoredBytes]:
        c = contents.c
        query = sa.select(c.id, c.owner, c.name, c.num_bytes, c.modified_at).order_by(c.id).limit(_LIST_PAGE)
        last = 0
        while True:
            async with self._engine.connect() as connection:
                page = (await connection.execute(query.where(c.id > last))).all()
            for row in page:
                yield StoredBytes(row.owner, row.name, row.num_bytes, row.modified_at)
            if len(page) < _LIST_PAGE:
                return
            last = page[-1].id

    async def probe(self) -> None:
        with _full_database_noticed():
            async with self._engine.connect() as connection:
                content_id = await connection.scalar(
                    sa.insert(contents).values(_new(UUID(int=0), "probe")).returning(contents.c.id)
                )
                await connection.execute(sa.insert(chunks).values(content_id=content_id, position=0, data=bytes(4096)))
                await connection.rollback()

    async def close(self) -> None:
        pass


_at = sa.bindparam("at", type_=sa.BigInteger)
_COVERING = (  # the wanted bytes alone: a few of a chunk cost a few
    sa.select(
        sa.func.substr(
            chunks.c.data,
            sa.cast(_at - chunks.c.position + 1, sa.Integer),
            sa.bindparam("most", type_=sa.Integer),
            type_=sa.LargeBinary,
        )
    )
    .join(contents, contents.c.id == chunks.c.content_id)
    .where(
        contents.c.owner == sa.bindparam("owner"),
        contents.c.name == sa.bindparam("name"),
        chunks.c.position <= _at,
    )
    .order_by(chunks.c.position.desc())
    .limit(1)
)


async def _size(connection: AsyncConnection, owner: UUID, name: str) -> int | None:
    return (await connection.execute(sa.select(contents.c.num_bytes).where(_is(owner, name)))).scalar_one_or_none()


def _is(owner: UUID, name: str) -> sa.ColumnElement[bool]:
    return (contents.c.owner == owner) & (contents.c.name == name)


def _new(owner: UUID, name: str) -> dict[str, object]:
    return {"owner": owner, "name": name, "num_bytes": 0, "modified_at": sa.func.clock_timestamp()}


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
