"""What requests ask of the database when they begin, all those that come at the same moment together."""

from __future__ import annotations

from uuid import UUID

from coordinator.batching import Gathered
from coordinator.runtime.set_aside import SetAside
from coordinator.runtime.task_claims import CLAIM
from coordinator.store import due, read_permissions
from coordinator.store.database import Database
from coordinator.store.read_permissions import ReadableBlob, WantedBytes


class ClaimProbe:
    def __init__(self, database: Database, set_aside: SetAside) -> None:
        self._database, self._set_aside = database, set_aside
        self._claimable = Gathered(self._look_for_work)
        self._readable = Gathered(self._look_for_bytes)

    async def has_work(self, client_id: UUID) -> bool:
        """Whether the client has a task that it could claim."""
        return await self._claimable.ask(client_id)

    async def readable(self, wanted: WantedBytes) -> ReadableBlob:
        """What the client may read under a digest."""
        return await self._readable.ask(wanted)

    async def _look_for_work(self, client_ids: list[UUID]) -> dict[UUID, bool]:
        async with self._database.read() as connection:
            now = await self._database.about_now(connection)
            barred = self._set_aside.held(CLAIM)
            ready = set(await due.claimable_clients(connection, client_ids, now, barred))
        return {client_id: client_id in ready for client_id in client_ids}

    async def _look_for_bytes(self, wanted: list[WantedBytes]) -> dict[WantedBytes, ReadableBlob]:
        async with self._database.read() as connection:
            return await read_permissions.for_clients(connection, wanted)
