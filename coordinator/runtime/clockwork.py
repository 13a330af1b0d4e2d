"""What happens by itself: leases run out, deadlines pass, lost wake-ups are made good, held runs go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta
from uuid import UUID

import structlog

from coordinator.blobs.port import BlobStore, StorageFull
from coordinator.bus.port import Bus
from coordinator.bus.waiters import Waiter
from coordinator.engine.messages import OpenRounds, ResumeRun, ReviewErasure
from coordinator.engine.react import CLOCK
from coordinator.runtime.history import Keeping
from coordinator.runtime.shell import Shell
from coordinator.runtime.sweeping import sweep_uploads
from coordinator.store import outbox
from coordinator.store.database import Database, Unavailable
from services.core.errors import Rejected

log = structlog.get_logger()
TICK_S = 0.25
REST_S = 0.002
"""After a ring: what was rung for may have made work for others, and that goes first."""
LOOK_AHEAD_EVERY_S = 2.0
"""How often to look for leases that were taken while the clock was ahead."""
TIDY_EVERY_S = 3600.0
ABANDONED_AFTER_S = 86400.0
"""Uploads that were begun or finished but never submitted are kept this long."""


class Clockwork:
    def __init__(self, database: Database, bus: Bus, shell: Shell, blobs: BlobStore, keeping: Keeping) -> None:
        self._database, self._bus, self._shell, self._blobs = database, bus, shell, blobs
        self._keeping = keeping
        self._looked_ahead_at = -LOOK_AHEAD_EVERY_S

    async def forever(self) -> None:
        with self._bus.waiter(CLOCK) as waiter:
            await self._turn(waiter)

    async def _turn(self, waiter: Waiter) -> None:
        tidied_at = -TIDY_EVERY_S
        while True:
            try:
                await self.tick()
                if time.monotonic() - tidied_at >= TIDY_EVERY_S:
                    tidied_at = time.monotonic()
                    await self.tidy()
            except Unavailable as error:
                log.warning("clockwork.waits", error=str(error)[:200])
            await waiter.wait(TICK_S)
            await asyncio.sleep(REST_S)

    async def tick(self) -> None:
        waiting = [UUID(key.removeprefix("client:")) for key in self._bus.local_keys() if key.startswith("client:")]
        async with self._database.read() as connection:
            now = await self._database.now(connection)
            due = await outbox.due_messages(connection, now)
            if time.monotonic() - self._looked_ahead_at >= LOOK_AHEAD_EVERY_S:
                self._looked_ahead_at = time.monotonic()
                due += await outbox.leases_from_ahead(connection, now)
            claimable = await outbox.claimable_clients(connection, waiting, now) if waiting else []
            held = await outbox.runs_held_for_storage(connection)
            due += [OpenRounds(run_id) for run_id in await outbox.runs_in_lockstep(connection)]
            due += [ReviewErasure(erasure_id) for erasure_id in await outbox.erasures_under_way(connection)]
        if claimable:
            self._bus.wake(f"client:{client_id}" for client_id in claimable)
        for answer in await asyncio.gather(*map(self._shell.handle, due), return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, Rejected):
                raise answer
        if held:
            await self._resume_when_there_is_room(held)

    async def tidy(self) -> None:
        """Drop what uploads and erasures left behind."""
        await self._keeping.tidy()
        await self._blobs.sweep_parts(ABANDONED_AFTER_S)
        await sweep_uploads(self._database, self._blobs, timedelta(seconds=ABANDONED_AFTER_S))

    async def _resume_when_there_is_room(self, run_ids: list[UUID]) -> None:
        with contextlib.suppress(StorageFull, Rejected):
            await self._blobs.probe()
            for run_id in run_ids:
                await self._shell.handle(ResumeRun(run_id))
                log.info("run.resumed", run=str(run_id), reason="the blob store has room again")
