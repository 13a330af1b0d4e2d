"""How many bytes a client and a federation may store, unfinished uploads included.

The figures are kept in memory: an upload adds to them without a look at the database. They are counted anew every few
minutes, because other processes store and delete as well, and always before anybody is refused; but counting never
takes more than a twentieth of the time, however many are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from coordinator.runtime.settings import Settings
from coordinator.store import access_queries
from coordinator.store.database import Database
from services.core.errors import Rejected

RECOUNT_S: Final = 600.0
SHORTEST_PAUSE_S: Final = 1.0
PAUSE_PER_COUNT: Final = 20.0
UNKNOWN_DISK_BYTES: Final = 1 << 40
"""Blobs in Postgres: how large its disk is taken to be."""


@dataclass(frozen=True, slots=True)
class Usage:
    stored_bytes: int
    """Of all federations, unfinished uploads included."""
    fullest_federation: float
    """The share of its quota that the federation has taken which is nearest to it; 0 if there is none, 1 if the quota
    is nothing."""
    fullest_client: float


class Quota:
    def __init__(self, database: Database, client_bytes: int, federation_bytes: int) -> None:
        self._database = database
        self._client_bytes, self.federation_bytes = client_bytes, federation_bytes
        self._stored: Counter[UUID] = Counter()
        """Bytes by federation and by client; an unfinished upload counts with all that it announced."""
        self._federations: set[UUID] = set()
        """Which of them are federations."""
        self._arriving: Counter[UUID] = Counter()
        self._counting = asyncio.Lock()
        self._counted_at, self._count_took_s = -RECOUNT_S, 0.0

    @contextlib.asynccontextmanager
    async def room(self, federation_id: UUID, client_id: UUID | None, num_bytes: int) -> AsyncIterator[None]:
        """Room for an upload of a client, or of an operator; its bytes count from now on. Rejects `quota-exceeded`."""
        await self._count_unless_newer_than(RECOUNT_S)
        if self._excess(federation_id, client_id, num_bytes) is not None:
            await self._count_unless_newer_than(max(SHORTEST_PAUSE_S, PAUSE_PER_COUNT * self._count_took_s))
        if (excess := self._excess(federation_id, client_id, num_bytes)) is not None:
            raise excess
        wanted = dict.fromkeys({federation_id, client_id or federation_id}, num_bytes)
        is_stored = True
        self._arriving.update(wanted)
        self._federations.add(federation_id)
        try:
            yield
        except Rejected as rejected:
            is_stored = rejected.code == "upload-offset-mismatch"  # else the part was dropped
            raise
        finally:
            self._arriving.subtract(wanted)
            if is_stored:
                self._stored.update(wanted)

    async def usage(self) -> Usage:
        """From the figures in memory, which are not older than those that uploads are judged by."""
        await self._count_unless_newer_than(RECOUNT_S)
        federations = [self._stored[federation_id] for federation_id in self._federations]
        clients = [stored for owner, stored in self._stored.items() if owner not in self._federations]
        return Usage(
            sum(federations),
            _share(max(federations, default=0), self.federation_bytes),
            _share(max(clients, default=0), self._client_bytes),
        )

    async def count(self) -> None:
        """Take the figures from the database."""
        started_at = time.monotonic()
        async with self._database.read() as connection:
            found = await access_queries.stored_bytes(connection)
        stored: Counter[UUID] = Counter()
        for federation_id, client_id, num_bytes in found:
            stored[federation_id] += num_bytes
            if client_id is not None:
                stored[client_id] += num_bytes
        self._stored = stored
        self._federations = {federation_id for federation_id, _, _ in found}
        self._counted_at = time.monotonic()
        self._count_took_s = self._counted_at - started_at

    async def _count_unless_newer_than(self, age_s: float) -> None:
        if time.monotonic() - self._counted_at < age_s:
            return
        async with self._counting:
            if time.monotonic() - self._counted_at >= age_s:
                await self.count()

    def _excess(self, federation_id: UUID, client_id: UUID | None, num_bytes: int) -> Rejected | None:
        if client_id is not None:
            have = self._stored[client_id] + self._arriving[client_id]
            if have + num_bytes > self._client_bytes:
                return _exceeded("this client", have, num_bytes, self._client_bytes, "LETHE_CLIENT_QUOTA_BYTES")
        have = self._stored[federation_id] + self._arriving[federation_id]
        if have + num_bytes > self.federation_bytes:
            return _exceeded("the federation", have, num_bytes, self.federation_bytes, "LETHE_FEDERATION_QUOTA_BYTES")
        return None


def _share(taken: int, quota: int) -> float:
    return taken / quota if quota else 1.0


def _exceeded(who: str, have: int, wanted: int, limit: int, setting: str) -> Rejected:
    detail = (
        f"{who} stores {have} of the {limit} bytes that it may ({setting}), and {wanted} more were to "
        "come; uploads that were never submitted are deleted after a day: wait, or ask the operator for more"
    )
    return Rejected("quota-exceeded", detail)


def quota_of(settings: Settings, database: Database) -> Quota:
    """The quotas as they are set; otherwise a client may fill half of the disk, and a federation three quarters."""
    disk_bytes = shutil.disk_usage(settings.blob_path).total if settings.blobs == "file" else UNKNOWN_DISK_BYTES
    client_bytes, federation_bytes = settings.client_quota_bytes, settings.federation_quota_bytes
    return Quota(
        database,
        disk_bytes // 2 if client_bytes is None else client_bytes,
        disk_bytes * 3 // 4 if federation_bytes is None else federation_bytes,
    )
