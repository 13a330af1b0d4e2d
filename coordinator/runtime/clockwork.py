"""What happens by itself: leases run out, deadlines pass, lost wake-ups are made good, held runs go on.

Each message that is due is decided alone. One that breaks is set aside, and those of other runs and requests go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import structlog

from coordinator.blobs.port import StorageFull
from coordinator.bus.port import Bus
from coordinator.engine.messages import DeadlinePassed, LeaseRanOut, Message, OpenRounds, ResumeRun, ReviewErasure
from coordinator.engine.react import CLOCK
from coordinator.runtime.kept_updates import KeptUpdates
from coordinator.runtime.set_aside import SetAside, WorkItem, pause_after
from coordinator.runtime.shell import Shell
from coordinator.runtime.storage import Storage
from coordinator.runtime.supervision import WorkHealth
from coordinator.runtime.sweeping import sweep_uploads
from coordinator.runtime.task_claims import CLAIM
from coordinator.store import due
from coordinator.store.database import Database, TimedOut, Unavailable
from coordinator.store.due import Due
from services.core.errors import Rejected

log = structlog.get_logger()
TICK_S = 0.25
REST_S = 0.002
"""A pause after each ring: what was rung for may have made work for others, and that goes first."""
MANY_COHORTS: Final = 100
REVIEW_REST_S: Final = 0.0002
"""For each cohort of the runs concerned, where they are many: how long a request rests before its first review, and
before the next one. Each looks at all of them, and what makes the first clean models goes first."""
LOOK_AHEAD_EVERY_S = 2.0
"""How often to look for leases that were taken while the clock was ahead."""
TIDY_EVERY_S = 3600.0
ABANDONED_AFTER_S = 86400.0
"""Uploads that were begun or finished but never submitted are kept this long."""
_OWN_KINDS: Final = tuple(kind.__name__ for kind in (LeaseRanOut, DeadlinePassed, OpenRounds, ReviewErasure, ResumeRun))


class Clockwork:
    def __init__(
        self,
        database: Database,
        bus: Bus,
        shell: Shell,
        storage: Storage,
        kept_updates: KeptUpdates,
        set_aside: SetAside,
    ) -> None:
        self._database, self._bus, self._shell, self._storage = database, bus, shell, storage
        self._kept_updates, self._set_aside = kept_updates, set_aside
        self._looked_ahead_at = -LOOK_AHEAD_EVERY_S
        self._looked_for_clients_at = -TICK_S
        self._rests = dict[UUID, float]()
        """Until when requests rest before they are reviewed."""

    async def forever(self, health: WorkHealth) -> None:
        with self._bus.waiter(CLOCK) as waiter:
            while True:
                try:
                    await self.tick(lets_rest=True)
                    health.ok()
                except Unavailable as error:
                    log.warning("clockwork.waits", error=str(error)[:200])
                    health.waits("the database cannot serve")
                await waiter.wait(TICK_S)
                await asyncio.sleep(REST_S)

    async def tidy_forever(self, health: WorkHealth) -> None:
        """Apart from the ticks: a sweep that breaks holds up no deadline, and is tried again sooner."""
        num_failures = 0
        while True:
            num_failures = 0 if await self.tidy() else num_failures + 1
            health.ok()
            await asyncio.sleep(pause_after(num_failures) if num_failures else TIDY_EVERY_S)

    async def tick(self, *, lets_rest: bool = False) -> None:
        """`lets_rest`: requests in large runs are reviewed after a rest, not at every ring."""
        waiting = self._clients_to_look_for()
        barred = self._set_aside.held(CLAIM)
        async with self._database.read() as connection:
            now = await self._database.about_now(connection)
            most = due.DUE_AT_ONCE + len(self._set_aside)  # what is set aside takes nobody's place
            found = await due.due_messages(connection, now, most)
            if time.monotonic() - self._looked_ahead_at >= LOOK_AHEAD_EVERY_S:
                self._looked_ahead_at = time.monotonic()
                found += await due.leases_from_ahead(connection, now)
            claimable = await due.claimable_clients(connection, waiting, now, barred) if waiting else []
            held = await due.runs_held_for_storage(connection)
            found += [_due(OpenRounds(run_id), run_id) for run_id in await due.runs_in_lockstep(connection)]
            under_way = await due.erasures_under_way(connection)
        to_review = self._rested(under_way) if lets_rest else list(under_way)
        found += [_due(ReviewErasure(one), one) for one in to_review]
        if claimable:
            self._bus.wake(f"client:{client_id}" for client_id in claimable)
        if held and await self._has_room():
            found += [_due(ResumeRun(run_id), run_id) for run_id in held]
        await self._send(found)
        for one in to_review:
            self._rests.pop(one, None)

    def _rested(self, under_way: Mapping[UUID, int]) -> list[UUID]:
        """Those to review now. Whoever is seen for the first time since its last review begins to rest."""
        now = time.monotonic()
        rests = {one: REVIEW_REST_S * num if num > MANY_COHORTS else 0.0 for one, num in under_way.items()}
        self._rests = {one: self._rests.get(one, now + rest_s) for one, rest_s in rests.items()}
        return [one for one, until in self._rests.items() if until <= now]

    def _clients_to_look_for(self) -> list[UUID]:
        """Those who wait here and may not have been rung for. Not at every ring: a tree rings once for each of its
        cohorts, and has half as many clients."""
        if time.monotonic() - self._looked_for_clients_at < TICK_S:
            return []
        self._looked_for_clients_at = time.monotonic()
        return [UUID(key.removeprefix("client:")) for key in self._bus.local_keys() if key.startswith("client:")]

    async def _send(self, due: Sequence[Due]) -> None:
        """Raises `Unavailable` when the database is, after all others are settled."""
        items = {_item(one): one for one in due}
        if len(self._set_aside):
            self._set_aside.keep_only(_OWN_KINDS, items.keys())
        chosen = [item for item in items if self._set_aside.is_due(item)]
        sent = (self._shell.handle(items[item].message) for item in chosen)
        answers = await asyncio.gather(*sent, return_exceptions=True)
        away: Unavailable | None = None
        for item, answer in zip(chosen, answers, strict=True):
            if not isinstance(answer, BaseException) or isinstance(answer, Rejected):
                self._set_aside.clear(item)
            elif isinstance(answer, Unavailable) and not isinstance(answer, TimedOut):
                away = answer
            elif isinstance(answer, Exception):
                self._set_aside.put(item, answer)
            else:
                raise answer
        if away is not None:
            raise away

    async def _has_room(self) -> bool:
        try:
            await self._storage.blobs.probe()
        except StorageFull:
            return False
        except Exception as error:  # whatever it is, messages that are due do not wait for it
            log.warning("storage.unknown", error=str(error)[:200])
            return False
        return True

    async def tidy(self) -> bool:
        """Drop what uploads and erasures left behind; whether all steps went well. None holds up another."""
        is_done = True
        for step in (self._kept_updates.tidy, self._sweep_uploads):
            item = WorkItem(f"tidying {step.__qualname__}", UUID(int=0))
            try:
                await step()
                self._set_aside.clear(item)
            except Exception as error:
                self._set_aside.put(item, error)
                is_done = False
        return is_done

    async def _sweep_uploads(self) -> None:
        await sweep_uploads(self._database, self._storage, timedelta(seconds=ABANDONED_AFTER_S))


def _due(message: Message[Any], owner: UUID) -> Due:
    return Due(message, owner, owner)


def _item(due: Due) -> WorkItem:
    return WorkItem(type(due.message).__name__, due.about, due.owner)
