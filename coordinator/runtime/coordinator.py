"""A running coordinator: its parts, put together from settings, and the background work of its role."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import make_url

from coordinator.blobs.files import FileBlobStore
from coordinator.blobs.port import BlobStore
from coordinator.bus.local import LocalBus
from coordinator.bus.port import Bus
from coordinator.engine.react import NOTICES
from coordinator.keys.directory import DirectoryKeys
from coordinator.runtime.acts import Acts
from coordinator.runtime.browser_sessions import BrowserSessions
from coordinator.runtime.evidence import Evidence
from coordinator.runtime.evidence_comparison import EvidenceComparison
from coordinator.runtime.federation_feed import FederationFeed
from coordinator.runtime.hand_overs import HandOvers
from coordinator.runtime.orphans import OrphanWatch
from coordinator.runtime.parts import Parts, Platform
from coordinator.runtime.plain_blob_upgrade import PlainBlobUpgrade
from coordinator.runtime.presence import Presence
from coordinator.runtime.pump import Queue
from coordinator.runtime.quota import quota_of
from coordinator.runtime.settings import Settings
from coordinator.runtime.supervision import Supervisor
from coordinator.runtime.webhooks import WebhookSender
from coordinator.store.database import Database, Unavailable
from services.core.private_files import make_directory, tighten, tighten_directory
from services.methods.catalogue import LEFT_OUT

if TYPE_CHECKING:
    from coordinator.runtime.openid import OpenId

log = structlog.get_logger()
RETENTION_S = 0.5
"""Updates that retention drops wait so long for those of the next rounds: one trip to the disk for all of them."""


class Coordinator(Parts):
    """Everything a process of the coordinator holds. `start` one role's background work, `close` when done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        make_directory(settings.home)
        database = Database(settings.url)
        self._kernel_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernel")
        super().__init__(
            Platform(
                database,
                _bus(settings),
                _blob_store(settings, database),
                DirectoryKeys(settings.evidence_path / "keys"),
                settings.evidence_path,
                settings.home / "scratch",
                self._kernel_thread,
            )
        )
        self.presence = Presence(self.database, self.bus)
        self.feed = FederationFeed(self.database)
        self.quota = quota_of(settings, self.database)
        self.created_at = time.monotonic()
        """A reading of the monotonic clock."""
        comparison = EvidenceComparison(self.database, self.bus, self.tombstones, self.signing_keys, self._observe)
        self.evidence = Evidence(self.database, self.bus, self.tombstones, self.signing_keys, comparison)
        self.webhooks = WebhookSender(self.database, self.shell, settings.callback_hosts, self.signing_keys)
        self.orphan_watch = OrphanWatch(self.database, self.blobs)
        self.upgrade = PlainBlobUpgrade(self.database, self.storage, self.scratch, settings.blob_path)
        kept_for = timedelta(days=settings.acts_days) if settings.acts_days is not None else None
        self.acts = Acts(self.database, self.bus, self.sealer, self.signing_keys, kept_for)
        self.supervisor = Supervisor()
        idle, longest = timedelta(seconds=settings.session_idle_s), timedelta(seconds=settings.session_longest_s)
        self.browser_sessions = BrowserSessions(self.database, self.bus, self.acts, idle, longest)
        self.openid = self._openid() if settings.openid_issuer is not None else None
        self.hand_overs = HandOvers(self.database, self.acts, settings.public_url)

    async def start_api(self) -> None:
        """The coordinating role: timers and chores; kernels too unless compute processes do them."""
        await self._start()
        await self.evidence.open()
        await self.upgrade.begin()
        await self.erasure_steps.release_salts()
        await self._mend_old()
        self.supervisor.start("clockwork", self.clockwork.forever)
        self.supervisor.start("tidying", self.clockwork.tidy_forever)
        self.supervisor.start("orphans", self.orphan_watch.forever)
        self.supervisor.start("evidence", self.evidence.watch)
        self._start_pump("chores", self.chores)
        # Apart from the chores: these must hold up no fence.
        self._start_pump("notices", Queue(NOTICES, ("notify",), self.webhooks.run))
        self._start_pump("history", self.history)
        self._start_pump("retention", self.retention, rest_s=RETENTION_S)
        self.supervisor.start("acts", self.acts.forever)
        self.supervisor.start("presence", self.presence.forever)
        self.supervisor.start("upgrade", self.upgrade.forever)
        if self.settings.compute == "threads":
            self._start_pump("kernels", self.kernels)

    async def start_compute(self) -> None:
        """The compute role: kernels only."""
        await self._start()
        self._start_pump("kernels", self.kernels)

    async def close(self) -> None:
        await self.supervisor.close()
        self._kernel_thread.shutdown(wait=False, cancel_futures=True)
        await super().close()

    async def _start(self) -> None:
        """Start what is started only once: what comes after it may have to be tried again."""
        if "shell" not in self.supervisor.health:
            await asyncio.to_thread(_tighten, self.settings)
            await self.kept_updates.sweep()
            await self.bus.start()
            self.supervisor.start("shell", self.shell.forever)
            for one in LEFT_OUT:
                log.warning("method.left-out", method=one.name, package=str(one.package), reason=one.reason)

    async def _mend_old(self) -> None:
        """What older releases left readable. A step that breaks is tried again at the next start and stops nobody."""
        for step in (self.erasure_steps.scrub_old, self.webhooks.seal_old):
            try:
                if requests := await step():
                    log.info("requests.mended", step=step.__name__, requests=requests)
            except Unavailable:
                raise
            except Exception as error:
                log.error("requests.not-mended", step=step.__name__, exc_info=error)

    def _openid(self) -> OpenId:
        from coordinator.runtime.openid import OpenId  # imports that a coordinator without people does without

        return OpenId(self.settings, self.database, self.bus, self.acts)

    def _start_pump(self, name: str, queue: Queue, *, rest_s: float = 0.0) -> None:
        self.supervisor.start(name, self.pump(queue, self.settings.kernel_lease_s, rest_s=rest_s).forever)


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
