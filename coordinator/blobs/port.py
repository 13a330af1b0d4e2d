"""What the coordinator asks of a blob store: bytes under a name, of one federation.

It knows nothing of what the bytes are: they come sealed, and a row of the database that is older than the first of them
says whose they are and whether they are all there. Names are never used twice. All methods may be called from many
tasks and processes at once.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol
from uuid import UUID

Produce = Callable[[], bytes]
"""Makes the bytes that are to be written. It may take a while: the store calls it where it waits for its medium."""


class StorageFull(OSError):
    """There is no room, or the medium takes no writes. Nothing was stored; the same call works once there is room."""


class Moved(Exception):
    """What is stored does not end where the caller left it."""

    def __init__(self, stored: int) -> None:
        super().__init__(f"it ends at {stored}")
        self.stored = stored


class Missing(FileNotFoundError):
    """There are no bytes under the name."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.ENOENT, "it is not stored here any more", name)


@dataclass(frozen=True, slots=True)
class StoredBytes:
    owner: UUID
    name: str
    num_bytes: int
    modified_at: datetime


class BlobStore(Protocol):
    async def size(self, owner: UUID, name: str) -> int | None:
        """How many bytes are stored; None where there are none."""

    async def append(self, owner: UUID, name: str, at: int, wanted_bytes: int, produce: Produce) -> int:
        """Add what `produce` makes, about `wanted_bytes`, where the bytes must end at `at`; 0 begins them. Returns
        where they end now. Raises `Moved`, `StorageFull`, and what `produce` raises."""

    async def truncate(self, owner: UUID, name: str, at: int, to: int) -> None:
        """Cut off what a crash left half-written: they end at `at` and shall end at `to`. Raises `Moved`."""

    async def sync(self, owner: UUID, name: str) -> None:
        """What was appended survives a loss of power. Raises `Missing`."""

    async def write(self, owner: UUID, name: str, wanted_bytes: int, produce: Produce) -> None:
        """`append` and `sync` of something small. What comes together is written together."""

    async def read(self, owner: UUID, name: str, start: int, end: int) -> bytes:
        """The bytes of that range, as far as there are. Raises `Missing`."""

    def local(self, owner: UUID, names: Iterable[str]) -> AbstractAsyncContextManager[dict[str, Path]]:
        """The bytes as files to read (never to write), valid inside the context. Raises `Missing`."""

    async def adopt(self, owner: UUID, name: str, path: Path) -> None:
        """Take a finished local file into the store, durably. The path is gone afterwards."""

    async def delete(self, owner: UUID, *names: str) -> None:
        """Durably; nothing happens where there is none."""

    def list(self) -> AsyncIterator[StoredBytes]:
        """Everything, in no particular order."""

    async def probe(self) -> None:
        """Raise `StorageFull` when a small write fails."""

    async def close(self) -> None: ...
