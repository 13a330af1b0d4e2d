"""The parts of a coordinator that decide, store, compute and forget, wired once for every kind of process.

`Coordinator` adds what serving takes and lets background tasks move the parts. A simulation moves the same parts by
hand, under a clock of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.blobs.port import BlobStore
from coordinator.bus.port import Bus
from coordinator.engine.events import Event
from coordinator.engine.messages import Message
from coordinator.engine.react import CHORES, HISTORY, KERNELS, RETENTION
from coordinator.keys.port import KeyStore
from coordinator.runtime.blob_sealer import BlobSealer
from coordinator.runtime.clockwork import Clockwork
from coordinator.runtime.erasure_steps import ErasureSteps
from coordinator.runtime.kept_updates import KeptUpdates
from coordinator.runtime.pump import Pump, Queue, chore_runner, kernel_runner
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.set_aside import SetAside
from coordinator.runtime.shell import Shell
from coordinator.runtime.signing import SigningKeys
from coordinator.runtime.storage import Storage
from coordinator.runtime.task_claims import TaskClaims
from coordinator.runtime.upload_receiver import UploadReceiver
from coordinator.runtime.uploads import Uploads
from coordinator.store.database import Database
from coordinator.tombstones.files import FileTombstoneLog


@dataclass(frozen=True)
class Platform:
    """What the parts stand on: the ports, two directories, and where kernels are computed."""

    database: Database
    bus: Bus
    blobs: BlobStore
    keys: KeyStore
    evidence: Path
    scratch: Path
    kernels: Executor
    entropy: Callable[[Message[Any]], bytes] = lambda message: os.urandom(16)
    is_experiment: bool = False
    """Whatever breaks is raised instead of set aside, and a purge leaves figures in rows: they are the result."""


class Parts:
    def __init__(self, platform: Platform) -> None:
        self.observers: list[Callable[[Event], None]] = []
        """Told of every event after its commit."""
        self.database, self.bus, self.blobs = platform.database, platform.bus, platform.blobs
        self.sealer = BlobSealer(self.database, platform.keys)
        self.storage = Storage(self.database, self.blobs, self.sealer, self.bus)
        self.shell = Shell(self.database, self.bus, platform.entropy, self._observe)
        self.receiver = UploadReceiver(self.storage)
        self.uploads = Uploads(self.database, self.shell, self.storage)
        self.set_aside = SetAside(is_strict=platform.is_experiment)
        self.task_claims = TaskClaims(self.database, self.shell, self.set_aside)
        self.scratch = Scratch(platform.scratch)
        self.kept_updates = KeptUpdates(self.database, self.storage, self.scratch)
        self.tombstones = FileTombstoneLog(platform.evidence / "tombstones.jsonl")
        self.signing_keys = SigningKeys(platform.evidence)
        self.erasure_steps = ErasureSteps(
            self.database,
            self.shell,
            self.storage,
            self.bus,
            self.tombstones,
            self.signing_keys,
            self.kept_updates,
            scrubs=not platform.is_experiment,
        )
        self.clockwork = Clockwork(self.database, self.bus, self.shell, self.storage, self.kept_updates, self.set_aside)
        chores = chore_runner(self.database, self.shell, self.storage, self.erasure_steps)
        kernels = kernel_runner(
            self.database, self.shell, self.storage, self.kept_updates, self.scratch, platform.kernels
        )
        self.retention = Queue(RETENTION, ("collect-updates",), self.kept_updates.collect)
        self.chores = Queue(CHORES, ("post", "drop-blob", "fence", "purge"), chores)
        self.history = Queue(HISTORY, ("keep-updates",), self.kept_updates.run)
        self.kernels = Queue(KERNELS, ("kernel",), kernels)

    def pump(self, queue: Queue, lease_s: float, *, rest_s: float = 0.0, at_once: int = 1) -> Pump:
        return Pump(self.database, self.bus, queue, lease_s, self.set_aside, rest_s=rest_s, at_once=at_once)

    async def close(self) -> None:
        await self.shell.close()
        self.scratch.close()
        await self.bus.close()
        await self.blobs.close()
        await self.database.close()

    def _observe(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)
