"""The outbox of an experiment: jobs of a kind are taken and done many at a time, so that their outcomes share
transactions."""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import uuid4

from coordinator.engine.entities import Job
from coordinator.runtime.pump import Runner
from coordinator.store import experiment_queries, outbox
from coordinator.store.database import Database

AT_ONCE: Final = 64


class Jobs:
    """Those of one kind. There is nobody else who could take them: their leases never run out."""

    def __init__(self, database: Database, kind: str, run: Runner) -> None:
        self._database, self._kind, self._run = database, kind, run

    async def drain(self) -> None:
        """Carry out everything that is ready now."""
        while jobs := await self._take():
            await asyncio.gather(*(self._run(job, token) for job, token in jobs))

    async def _take(self) -> list[tuple[Job, str]]:
        token = uuid4().hex
        async with self._database.read() as connection:
            if not await outbox.has_job(connection, [self._kind], await self._database.now(connection)):
                return []
        async with self._database.write() as connection:
            now = await self._database.now(connection)
            return [
                (job, token) for job in await experiment_queries.take_jobs(connection, self._kind, now, token, AT_ONCE)
            ]
