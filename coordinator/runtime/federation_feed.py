"""Keeps the feed of a federation complete for whoever looks at it, on any replica."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from sqlalchemy.exc import IntegrityError

from coordinator.runtime.shared_reads import SharedReads
from coordinator.runtime.transactions import transact
from coordinator.store import feeds
from coordinator.store.database import Database
from coordinator.store.paging import Position
from services.wire.v1.resources import Page
from services.wire.v1.views import FeedEvent


class FederationFeed:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._reads = SharedReads()

    async def page(self, federation_id: UUID, position: Position, *, newest_first: bool = False) -> Page[FeedEvent]:
        """What has happened up to now. Numbers that were told once stay: they are on disk before anybody sees them. All
        streams that have seen the same share one reading."""

        async def reading() -> Page[FeedEvent]:
            await self._complete(federation_id)
            async with self._database.read() as connection:
                read = feeds.newest_events if newest_first else feeds.events
                return await read(connection, federation_id, position)

        return await self._reads.read((federation_id, position, newest_first), reading)

    async def head(self, federation_id: UUID) -> int:
        """The number of what happened last."""
        await self._complete(federation_id)
        async with self._database.read() as connection:
            return await feeds.head(connection, federation_id)

    async def _complete(self, federation_id: UUID) -> None:
        async with self._database.read() as connection:
            if not await feeds.is_behind(connection, federation_id):
                return
        with suppress(IntegrityError):  # another process was quicker
            await transact(self._database, lambda connection: feeds.extend(connection, federation_id))
