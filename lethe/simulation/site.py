"""The coordinator of an experiment: its real parts, in one process, moved by hand instead of by timers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.blobs.files import FileBlobStore
from coordinator.engine.events import Event
from coordinator.engine.messages import RecordBlob
from coordinator.engine.react import CHORES, CLOCK, HISTORY, KERNELS, RETENTION, client_key
from coordinator.runtime.clockwork import Clockwork
from coordinator.runtime.coordinator import CHORE_KINDS
from coordinator.runtime.erasure import Erasing
from coordinator.runtime.history import Keeping
from coordinator.runtime.pump import Pump, chore_runner, kernel_runner
from coordinator.runtime.quarantine import Quarantine
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealing_keys import SealingKeys
from coordinator.runtime.shell import Shell
from coordinator.runtime.signing import SigningKeys
from coordinator.store import accounts, record, schema
from coordinator.store.database import Database
from coordinator.tombstones.files import FileTombstoneLog
from lethe.simulation.clock import BEGINNING, Bells, NamedEntropy, VirtualClock, virtual_s
from lethe.simulation.jobs import Jobs
from lethe.simulation.training import AtOnce
from services.core.ids import uuid7

JOB_LEASE_S: Final = 86400.0
ENROLLED_AT_ONCE: Final = 10_000
CLIENT_KEY: Final = client_key(UUID(int=0)).removesuffix(str(UUID(int=0)))


class Site:
    def __init__(self, home: Path, seed: int) -> None:
        self.clock = VirtualClock()
        self.entropy = NamedEntropy(seed, self.clock)
        self.observers: list[Callable[[Event], None]] = []
        self.bells = Bells()
        self.database = Database(f"sqlite:///{home.absolute() / 'lethe.db'}", clock=self.clock, is_scratch=True)
        self.blobs = FileBlobStore(home / "blobs", is_scratch=True)
        self.shell = Shell(self.database, self.bells, self.entropy, self._observe)
        evidence = home / "evidence"
        evidence.mkdir(parents=True, exist_ok=True)
        tombstones = FileTombstoneLog(evidence / "tombstones.jsonl")
        self._scratch = Scratch(home / "scratch")
        self._keeping = Keeping(self.database, self.blobs, SealingKeys(evidence / "keys"), self._scratch)
        erasing = Erasing(
            self.database,
            self.shell,
            self.blobs,
            self.bells,
            tombstones,
            SigningKeys(evidence),
            self._keeping,
            scrubs=False,
        )
        strict = Quarantine(is_strict=True)  # what breaks ends the experiment
        self._clockwork = Clockwork(self.database, self.bells, self.shell, self.blobs, self._keeping, strict)
        chores = chore_runner(self.database, self.shell, self.blobs, erasing)
        kernels = kernel_runner(self.database, self.shell, self.blobs, self._keeping, self._scratch, AtOnce())
        self._pumps: list[Pump | Jobs] = [
            Jobs(self.database, "collect-updates", self._keeping.collect),
            Pump(self.database, self.bells, CHORES, CHORE_KINDS, JOB_LEASE_S, chores, strict),
            Jobs(self.database, "keep-updates", self._keeping.run),
            Jobs(self.database, "kernel", kernels),
        ]
        self.federation_id = uuid7(BEGINNING, self.entropy.draw("federation"))
        self.client_ids: dict[str, UUID] = {}
        self.names: dict[str, str] = {}
        """By the text of the client's id."""

    async def open(self) -> None:
        """Go on where the database stopped, if it is not new."""
        await schema.create(self.database)
        await self._keeping.sweep()
        async with self.database.write() as connection:
            await record.free_jobs(connection)
            if (newest := await record.newest_instant(connection)) is not None:
                self.clock.move_to(virtual_s(newest))
        self.shell.start()

    async def close(self) -> None:
        await self.shell.close()
        self._scratch.close()
        await self.blobs.close()
        await self.database.close()

    async def enrol(self, names: list[str]) -> None:
        """Those who are not yet."""
        async with self.database.write() as connection:
            for first in range(0, len(names), ENROLLED_AT_ONCE):
                some = names[first : first + ENROLLED_AT_ONCE]
                known = await accounts.client_ids(connection, self.federation_id, some)
                new = {name: uuid7(self.clock(), self.entropy.draw(name)) for name in some if name not in known}
                if new:
                    await accounts.add_clients(connection, new, self.federation_id, self.clock())
                self.client_ids |= known | new
                self.names |= {str(client_id): name for name, client_id in (known | new).items()}

    async def take_in(self, path: Path, sender: UUID | None = None) -> RecordBlob:
        """Store a file; returns the record that makes it visible."""
        digest, inspection, num_bytes = await self.blobs.adopt(self.federation_id, path)
        layout, finite = inspection.layout, inspection.finite
        layouts = (layout.digest(), layout.updatable().digest())
        return RecordBlob(self.federation_id, digest, num_bytes, *layouts, finite, sender)

    async def turn(self) -> set[str] | None:
        """Do what bells were rung for. Returns the ids of the clients among them; None when no bell was rung."""
        jobs = {CHORES, HISTORY, KERNELS, RETENTION}
        rung = {key for key in self.bells.take() if key in jobs or key == CLOCK or key.startswith(CLIENT_KEY)}
        if not rung:
            return None
        if rung & jobs:
            for pump in self._pumps:
                await pump.drain()
        if CLOCK in rung:
            await self._clockwork.tick()
        return {key.removeprefix(CLIENT_KEY) for key in rung if key.startswith(CLIENT_KEY)}

    async def tick(self) -> None:
        """Deadlines that have passed now, jobs whose pause is over."""
        await self._clockwork.tick()
        for pump in self._pumps:
            await pump.drain()

    def _observe(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)
