"""What the coordinator asks of a blob store.

A blob is a safetensors file named by its sha256 and owned by one federation; equal bytes of two owners are stored
twice, so that erasing one never touches the other. It is either complete and checked, or a *part*: the first bytes of
one sender's upload, invisible to readers. All methods may be called from many tasks and processes at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from services.tensors.inspection import Inspection


class StorageFull(OSError):
    """There is no room, or the medium takes no writes. Nothing was stored; the same call works once there is room."""


@dataclass(frozen=True, slots=True)
class Partial:
    """The stream ended early; `offset` bytes are stored and the upload may go on from there."""

    offset: int


@dataclass(frozen=True, slots=True)
class Complete:
    """The blob is durable and readable. `existed`: it was there already. What was sent was read and checked all the
    same: whoever names a digest has not shown that it has the bytes."""

    inspection: Inspection
    num_bytes: int
    existed: bool


Received = Partial | Complete


class Examined(NamedTuple):
    """What a local file is."""

    digest: str
    inspection: Inspection
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StoredBlob:
    digest: str
    num_bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class StoredPart:
    """An unfinished upload; of its sender it tells only `sender_hash`."""

    owner: UUID
    sender: str
    num_bytes: int


def sender_hash(sender: str) -> str:
    """What names a sender's parts."""
    return hashlib.sha256(sender.encode()).hexdigest()[:24]


class BlobStore(Protocol):
    async def stat(self, owner: UUID, digest: str) -> int | None:
        """Bytes of the complete blob."""

    async def part_size(self, owner: UUID, digest: str, sender: str) -> int | None:
        """Bytes stored of this sender's unfinished upload; None when there are none."""

    async def receive(
        self, owner: UUID, digest: str, *, sender: str, offset: int, total: int, chunks: AsyncIterable[bytes]
    ) -> Received:
        """Append a stream to the sender's part; at `total` bytes check it and make it a blob.

        What arrived stays when `chunks` raises. Rejects `upload-offset-mismatch` (with `offset=` the stored bytes) when
        the part does not end at `offset`, also when another upload of the same sender has moved on meanwhile; and
        `too-large`, `digest-mismatch`, `not-safetensors`, which drop the part. Raises `StorageFull`.
        """

    def open(self, owner: UUID, digest: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` up to, not including, `end`. Rejects `not-found` and `range-not-satisfiable`."""

    def local(self, owner: UUID, digests: Iterable[str]) -> AbstractAsyncContextManager[dict[str, Path]]:
        """Complete blobs as files to read (never to write), valid inside the context. Rejects `not-found`."""

    async def adopt(self, owner: UUID, path: Path, examined: Examined | None = None) -> Examined:
        """Take a finished local file into the store; it need not be examined twice. The path is gone afterwards."""

    async def delete(self, owner: UUID, *digests: str) -> None:
        """Forget complete blobs, durably; nothing happens where there is none."""

    def list(self, owner: UUID) -> AsyncIterator[StoredBlob]:
        """Every complete blob of the owner, in no particular order."""

    async def parts(self) -> Sequence[StoredPart]:
        """Every unfinished upload."""

    async def drop_parts(self, owner: UUID, sender: str) -> None:
        """Drop what this sender has not finished."""

    async def sweep_parts(self, older_than_s: float, owner: UUID | None = None) -> int:
        """Drop parts, of one owner or of all, to which nothing was added for so long; returns how many."""

    async def probe(self) -> None:
        """Raise `StorageFull` when a small write fails."""

    async def close(self) -> None: ...
