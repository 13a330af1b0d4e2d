"""A running coordinator: its parts, put together from settings, and the background work of its role."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from coordinator.blobs.files import FileBlobStore
from coordinator.blobs.port import BlobStore
from coordinator.bus.local import LocalBus
from coordinator.bus.port import Bus
from coordinator.engine.events import Event
from coordinator.engine.react import CHORES, HISTORY, KERNELS, NOTICES, RETENTION
from coordinator.runtime.clockwork import Clockwork
from coordinator.runtime.erasure import SIGNING_KEY, Erasing
from coordinator.runtime.history import Keeping
from coordinator.runtime.notifying import Notifying
from coordinator.runtime.presence import Presence
from coordinator.runtime.pump import Pump, chore_runner, kernel_runner
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealing_keys import SealingKeys
from coordinator.runtime.settings import Settings
from coordinator.runtime.shell import Shell
from coordinator.store.database import Database
from coordinator.tombstones.files import FileTombstoneLog

log = structlog.get_logger()
CHORE_KINDS = ("post", "drop-blob", "fence", "purge")

RETENTION_S = 0.5
"""Updates that retention drops wait so long for those of the next rounds: one trip to the disk for all of them."""


class Coordinator:
    """Everything a process of the coordinator holds. `start` one role's background work, `close` when done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.observers: list[Callable[[Event], None]] = []
        """Told of every event after its commit."""
        settings.home.mkdir(parents=True, exist_ok=True)
        self.database = Database(settings.url)
        self.bus = _bus(settings)
        self.presence = Presence(self.database, self.bus)
        self.blobs = _blob_store(settings, self.database)
        self.shell = Shell(self.database, self.bus, observe=self._observe)
        keys, self._scratch = SealingKeys(settings.evidence_path / "keys"), Scratch(settings.home / "scratch")
        self.keeping = Keeping(self.database, self.blobs, keys, self._scratch)
        self.erasing = Erasing(
            self.database,
            self.shell,
            self.blobs,
            self.bus,
            FileTombstoneLog(settings.evidence_path / "tombstones.jsonl"),
            settings.evidence_path / SIGNING_KEY,
            self.keeping,
        )
        self.notifying = Notifying(
            self.database, self.shell, settings.callback_hosts, settings.evidence_path / SIGNING_KEY
        )
        self._kernels = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernel")
        self._tasks: list[asyncio.Task[None]] = []

    async def start_api(self) -> None:
        """The coordinating role: timers and chores; kernels too unless compute processes do them."""
        await self._start()
        if again := await self.erasing.refence():
            log.warning("erasures.fenced-again", count=again, reason="the database is older than the tombstones")
        self._spawn(Clockwork(self.database, self.bus, self.shell, self.blobs, self.keeping).forever())
        chores = chore_runner(self.database, self.shell, self.blobs, self.erasing)
        lease_s = self.settings.kernel_lease_s
        self._spawn(Pump(self.database, self.bus, CHORES, CHORE_KINDS, lease_s, chores).forever())
        notices = Pump(self.database, self.bus, NOTICES, ("notify",), lease_s, self.notifying.run)
        history = Pump(self.database, self.bus, HISTORY, ("keep-updates",), lease_s, self.keeping.run)
        retention = Pump(
            self.database, self.bus, RETENTION, ("collect-updates",), lease_s, self.keeping.collect, rest_s=RETENTION_S
        )
        for slow in (notices, history, retention):  # apart from the chores: these must hold up no fence
            self._spawn(slow.forever())
        self._spawn(self.presence.forever())
        if self.settings.compute == "threads":
            self._spawn_kernels()

    async def start_compute(self) -> None:
        """The compute role: kernels only."""
        await self._start()
        self._spawn_kernels()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.shell.close()
        self._kernels.shutdown(wait=False, cancel_futures=True)
        self._scratch.close()
        await self.bus.close()
        await self.blobs.close()
        await self.database.close()

    async def _start(self) -> None:
        await self.keeping.sweep()
        await self.bus.start()
        self.shell.start()

    def _observe(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)

    def _spawn_kernels(self) -> None:
        runner = kernel_runner(self.database, self.shell, self.blobs, self.keeping, self._scratch, self._kernels)
        pump = Pump(self.database, self.bus, KERNELS, ("kernel",), self.settings.kernel_lease_s, runner)
        self._spawn(pump.forever())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_report)
        self._tasks.append(task)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background.died", exc_info=error)


def _bus(settings: Settings) -> Bus:
    if settings.redis_url is None:
        return LocalBus()
    from coordinator.bus.redis import RedisBus  # a second of imports that an embedded coordinator does without

    return RedisBus(settings.redis_url)


def _blob_store(settings: Settings, database: Database) -> BlobStore:
    if settings.blobs == "postgres":
        from coordinator.blobs.postgres import PostgresBlobStore

        return PostgresBlobStore(database.engine)
    return FileBlobStore(settings.blob_path, reserve_bytes=settings.blob_reserve_bytes)
