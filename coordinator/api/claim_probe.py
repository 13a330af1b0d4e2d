"""Looks for ready tasks on behalf of polls that begin at the same moment: one query for all of them.

A thousand agents that come back together after a restart cost a few queries, not a thousand.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

from coordinator.batching import yield_to_loop
from coordinator.runtime.set_aside import SetAside
from coordinator.runtime.task_claims import CLAIM
from coordinator.store import due
from coordinator.store.database import Database

MOST_AT_ONCE: Final = 200


class ClaimProbe:
    def __init__(self, database: Database, set_aside: SetAside) -> None:
        self._database, self._set_aside = database, set_aside
        self._asking: dict[UUID, asyncio.Future[bool]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def has_work(self, client_id: UUID) -> bool:
        """Whether the client has a task that it could claim, as of some instant after the call."""
        if client_id not in self._asking:
            self._asking[client_id] = asyncio.get_running_loop().create_future()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._asking[client_id])

    async def _look(self) -> None:
        while self._asking:
            await yield_to_loop()
            asked = dict(list(self._asking.items())[:MOST_AT_ONCE])
            for client_id in asked:
                del self._asking[client_id]
            try:
                async with self._database.read() as connection:
                    now = await self._database.now(connection)
                    barred = self._set_aside.held(CLAIM)
                    ready = set(await due.claimable_clients(connection, list(asked), now, barred))
            except Exception as error:
                for answer in asked.values():
                    answer.set_exception(error)
                    answer.exception()  # seen, also when all who asked have gone
            else:
                for client_id, answer in asked.items():
                    answer.set_result(client_id in ready)
        self._looking = None
