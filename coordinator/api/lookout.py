"""What requests ask of the database when they begin, all those that come at the same moment together."""

from __future__ import annotations

from uuid import UUID

from coordinator.gathering import Gathered
from coordinator.runtime.granting import CLAIM
from coordinator.runtime.quarantine import Quarantine
from coordinator.store import due, reading
from coordinator.store.database import Database
from coordinator.store.reading import Found, WantedBytes


class Lookout:
    def __init__(self, database: Database, quarantine: Quarantine) -> None:
        self._database, self._quarantine = database, quarantine
        self._claimable = Gathered(self._look_for_work)
        self._readable = Gathered(self._look_for_bytes)

    async def has_work(self, client_id: UUID) -> bool:
        """Whether the client has a task that it could claim."""
        return await self._claimable.ask(client_id)

    async def readable(self, wanted: WantedBytes) -> Found:
        """What the client may read under a digest."""
        return await self._readable.ask(wanted)

    async def _look_for_work(self, client_ids: list[UUID]) -> dict[UUID, bool]:
        async with self._database.read() as connection:
            now = await self._database.about_now(connection)
            barred = self._quarantine.held(CLAIM)
            ready = set(await due.claimable_clients(connection, client_ids, now, barred))
        return {client_id: client_id in ready for client_id in client_ids}

    async def _look_for_bytes(self, wanted: list[WantedBytes]) -> dict[WantedBytes, Found]:
        async with self._database.read() as connection:
            return await reading.for_clients(connection, wanted)
