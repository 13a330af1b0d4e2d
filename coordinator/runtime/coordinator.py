"""A running coordinator: its parts, put together from settings, and the background work of its role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from sqlalchemy import make_url

from coordinator.blobs.files import FileBlobStore
from coordinator.blobs.port import BlobStore
from coordinator.bus.local import LocalBus
from coordinator.bus.port import Bus
from coordinator.engine.events import Event
from coordinator.engine.react import CHORES, HISTORY, KERNELS, NOTICES, RETENTION
from coordinator.keys.directory import DirectoryKeys
from coordinator.runtime.clockwork import Clockwork
from coordinator.runtime.erasure import Erasing
from coordinator.runtime.evidence import Evidence
from coordinator.runtime.granting import Granting
from coordinator.runtime.history import Keeping
from coordinator.runtime.notifying import Notifying
from coordinator.runtime.presence import Presence
from coordinator.runtime.pump import Pump, Runner, chore_runner, kernel_runner
from coordinator.runtime.quarantine import Quarantine
from coordinator.runtime.quota import quota_of
from coordinator.runtime.reception import Reception
from coordinator.runtime.refencing import Refencing
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealing import Sealing
from coordinator.runtime.settings import Settings
from coordinator.runtime.shell import Shell
from coordinator.runtime.signing import SigningKeys
from coordinator.runtime.storage import Storage
from coordinator.runtime.supervision import Supervisor
from coordinator.runtime.upgrading import Upgrading
from coordinator.runtime.uploads import Uploads
from coordinator.store.database import Database, Unavailable
from coordinator.tombstones.files import FileTombstoneLog
from services.core.private_files import make_directory, tighten, tighten_directory

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
        make_directory(settings.home)
        self.database = Database(settings.url)
        self.bus = _bus(settings)
        self.presence = Presence(self.database, self.bus)
        self.blobs = _blob_store(settings, self.database)
        self.sealing = Sealing(self.database, DirectoryKeys(settings.evidence_path / "keys"))
        self.storage = Storage(self.database, self.blobs, self.sealing, self.bus)
        self.reception = Reception(self.storage)
        self.quota = quota_of(settings, self.database)
        self.shell = Shell(self.database, self.bus, observe=self._observe)
        self.uploads = Uploads(self.database, self.shell, self.storage)
        self.quarantine = Quarantine()
        self.granting = Granting(self.database, self.shell, self.quarantine)
        self._scratch = Scratch(settings.home / "scratch")
        self.keeping = Keeping(self.database, self.storage, self._scratch)
        self.tombstones = tombstones = FileTombstoneLog(settings.evidence_path / "tombstones.jsonl")
        self.signing_keys = SigningKeys(settings.evidence_path)
        refencing = Refencing(self.database, self.bus, tombstones, self.signing_keys, self._observe)
        self.evidence = Evidence(self.database, self.bus, tombstones, self.signing_keys, refencing)
        self.erasing = Erasing(
            self.database, self.shell, self.storage, self.bus, tombstones, self.signing_keys, self.keeping
        )
        self.notifying = Notifying(self.database, self.shell, settings.callback_hosts, self.signing_keys)
        self.upgrading = Upgrading(self.database, self.storage, self._scratch, settings.blob_path)
        self._kernels = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernel")
        self.supervisor = Supervisor()

    async def start_api(self) -> None:
        """The coordinating role: timers and chores; kernels too unless compute processes do them."""
        await self._start()
        await self.evidence.open()
        await self.upgrading.begin()
        await self.erasing.release_salts()
        await self._mend_old()
        clockwork = Clockwork(self.database, self.bus, self.shell, self.storage, self.keeping, self.quarantine)
        self.supervisor.start("clockwork", clockwork.forever)
        self.supervisor.start("tidying", clockwork.tidy_forever)
        self.supervisor.start("evidence", self.evidence.watch)
        chores = chore_runner(self.database, self.shell, self.storage, self.erasing)
        self._start_pump("chores", CHORES, CHORE_KINDS, chores)
        # Apart from the chores: these must hold up no fence.
        self._start_pump("notices", NOTICES, ("notify",), self.notifying.run)
        self._start_pump("history", HISTORY, ("keep-updates",), self.keeping.run)
        self._start_pump("retention", RETENTION, ("collect-updates",), self.keeping.collect, rest_s=RETENTION_S)
        self.supervisor.start("presence", self.presence.forever)
        self.supervisor.start("upgrade", self.upgrading.forever)
        if self.settings.compute == "threads":
            self._start_kernels()

    async def start_compute(self) -> None:
        """The compute role: kernels only."""
        await self._start()
        self._start_kernels()

    async def close(self) -> None:
        await self.supervisor.close()
        await self.shell.close()
        self._kernels.shutdown(wait=False, cancel_futures=True)
        self._scratch.close()
        await self.bus.close()
        await self.blobs.close()
        await self.database.close()

    async def _start(self) -> None:
        """Once: what comes after it may have to be tried again."""
        if "shell" not in self.supervisor.pulses:
            await asyncio.to_thread(_tighten, self.settings)
            await self.keeping.sweep()
            await self.bus.start()
            self.supervisor.start("shell", self.shell.forever)

    async def _mend_old(self) -> None:
        """What older releases left readable. A step that breaks is tried again at the next start and stops nobody."""
        for step in (self.erasing.scrub_old, self.notifying.seal_old):
            try:
                if requests := await step():
                    log.info("requests.mended", step=step.__name__, requests=requests)
            except Unavailable:
                raise
            except Exception as error:
                log.error("requests.not-mended", step=step.__name__, exc_info=error)

    def _observe(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)

    def _start_kernels(self) -> None:
        runner = kernel_runner(self.database, self.shell, self.storage, self.keeping, self._scratch, self._kernels)
        self._start_pump("kernels", KERNELS, ("kernel",), runner)

    def _start_pump(self, name: str, bell: str, kinds: tuple[str, ...], run: Runner, *, rest_s: float = 0.0) -> None:
        lease_s = self.settings.kernel_lease_s
        pump = Pump(self.database, self.bus, bell, kinds, lease_s, run, self.quarantine, rest_s=rest_s)
        self.supervisor.start(name, pump.forever)


def private_places(settings: Settings) -> list[Path]:
    """What is nobody else's with all that is in it, wherever it lies."""
    places = [settings.blob_path, settings.evidence_path, settings.home / "scratch", settings.home / "admin.token"]
    if settings.is_embedded:
        places += database_files(settings)
    return places


def database_files(settings: Settings) -> list[Path]:
    """SQLite: its file and those that it puts beside it."""
    database = Path(make_url(settings.url).database or "")
    return [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm")]


def _tighten(settings: Settings) -> None:
    """What is kept here is nobody else's: weights, tokens, keys. An older version made it readable for all."""
    left = [] if tighten_directory(settings.home) else [settings.home]
    left += tighten(*private_places(settings))
    if left:
        log.warning("files.not-private", count=len(left), first=str(left[0]), reason="they belong to another user")


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
