"""Models that an erasure has taken away go from the cache, and the coordinator is told.

The coordinator says with its answers that there are some. They are dropped beside the agent's work: a model that a task
is using at this moment goes when the task is done, and only then is the coordinator told. What gets lost on the way is
said again with a later answer.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Protocol

import structlog

from services.wire.v1.superseded_models import ModelsDropped, SupersededModels
from worker.answers import CoordinatorRefused
from worker.cache import ModelCache

log = structlog.get_logger()


class CacheTransport(Protocol):
    superseded: asyncio.Event
    superseded_at: datetime | None

    async def superseded_models_once(self) -> SupersededModels: ...

    async def confirm_dropped_once(self, dropped: ModelsDropped) -> None: ...


class CacheCleaner:
    """Drops superseded models from one client's cache."""

    def __init__(self, transport: CacheTransport, cache: ModelCache) -> None:
        self._transport, self._cache = transport, cache
        self._followed: datetime | None = None

    def begin_session(self) -> None:
        """Each session has to follow all fences again: another machine may have another cache."""
        self._followed = None

    async def forever(self) -> None:
        while True:
            await self._transport.superseded.wait()
            self._transport.superseded.clear()
            try:
                await self.follow()
            except CoordinatorRefused:
                continue  # it says so again with its next answer
            except OSError as error:
                log.warning("cache.not-dropped", error=str(error))

    async def follow(self) -> None:
        told = self._transport.superseded_at
        if told is None or (self._followed is not None and told <= self._followed):
            return
        stated = await self._transport.superseded_models_once()
        if stated.through is not None and self._cache.drop(stated.digests):
            await self._transport.confirm_dropped_once(ModelsDropped(through=stated.through))
            self._followed = stated.through
