"""The coordinator of an experiment: its real parts, in one process, moved by hand instead of by timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.blobs.disk import pieces_of
from coordinator.blobs.files import FileBlobStore
from coordinator.engine.entities import Facts, Task
from coordinator.engine.events import Event
from coordinator.engine.messages import RecordBlob
from coordinator.engine.react import CHORES, CLOCK, HISTORY, KERNELS, RETENTION, client_key
from coordinator.keys.directory import DirectoryKeys
from coordinator.runtime.clockwork import Clockwork
from coordinator.runtime.coordinator import CHORE_KINDS
from coordinator.runtime.erasure import Erasing
from coordinator.runtime.history import Keeping
from coordinator.runtime.pump import Pump, chore_runner, kernel_runner
from coordinator.runtime.quarantine import Quarantine
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealing import Sealing
from coordinator.runtime.shell import Shell
from coordinator.runtime.signing import SigningKeys
from coordinator.runtime.storage import Storage, name_of
from coordinator.runtime.writing import SealedWriter
from coordinator.store import accounts, blobs, record, schema
from coordinator.store.blobs import HeldTask
from coordinator.store.database import Database
from coordinator.tombstones.files import FileTombstoneLog
from lethe.simulation.clock import BEGINNING, Bells, NamedEntropy, VirtualClock, virtual_s
from lethe.simulation.jobs import Jobs
from lethe.simulation.training import AtOnce
from services.core.ids import uuid7
from services.tensors.inspection import InspectingWriter
from services.tensors.layout import UPLOADED

JOB_LEASE_S: Final = 86400.0
ENROLLED_AT_ONCE: Final = 10_000
FETCHED_MODELS: Final = 256
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
        keys = DirectoryKeys(evidence / "keys", is_durable=False)
        self.storage = Storage(self.database, self.blobs, Sealing(self.database, keys), self.bells)
        self._models = home / "scratch" / "models"
        self._fetched: list[Path] = []
        self._keeping = Keeping(self.database, self.storage, self._scratch)
        erasing = Erasing(
            self.database,
            self.shell,
            self.storage,
            self.bells,
            tombstones,
            SigningKeys(evidence),
            self._keeping,
            scrubs=False,
        )
        strict = Quarantine(is_strict=True)  # what breaks ends the experiment
        self._clockwork = Clockwork(self.database, self.bells, self.shell, self.storage, self._keeping, strict)
        chores = chore_runner(self.database, self.shell, self.storage, erasing)
        kernels = kernel_runner(self.database, self.shell, self.storage, self._keeping, self._scratch, AtOnce())
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

    async def fetch(self, digests: Iterable[str]) -> dict[str, Path]:
        """Models as plain files, as workers have them in their caches; the newest few stay."""
        found = await self.storage.find(self.federation_id, list(digests))
        files = {}
        for digest, blob in found.items():
            path = files[digest] = self._models / digest.removeprefix("sha256:")
            if not path.exists():  # a purge empties the directory
                self._models.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join([piece async for piece in self.storage.pieces(blob)]))
            if path not in self._fetched:
                self._fetched.append(path)
        for path in [path for path in self._fetched[:-FETCHED_MODELS] if path not in files.values()]:
            self._fetched.remove(path)
            path.unlink(missing_ok=True)
        return files

    async def take_in(self, path: Path, task: Task | None = None) -> RecordBlob:
        """Store a file; returns the record that makes it visible."""
        sealing, now = self.storage.sealing, self.clock()
        if task is None:
            blob = await sealing.of_operator(self.federation_id, "", 0, now)
        else:
            held = HeldTask(task.id, task.client_id, task.cohort_id, task.epoch)
            blob = await sealing.of_task(self.federation_id, held, "", 0, now)
        with self._scratch.file() as sealed:
            with SealedWriter(sealed, await sealing.seal_of(blob)) as out:
                writer = InspectingWriter(out, UPLOADED)
                for piece in pieces_of(path):
                    writer.write(piece)
                digest, inspection, num_bytes = writer.finish()
            path.unlink()
            async with self.database.read() as connection:
                tasks = [] if task is None else [task.id]
                before = await blobs.of_tasks(connection, tasks, [digest])
                before += await blobs.of_operators(connection, [] if tasks else [self.federation_id], [digest])
            await self.storage.give_up(self.federation_id, [one.id for one in before])  # of a life that was cut short
            async with self.database.write() as connection:
                await blobs.announce(connection, [replace(blob, digest=digest, num_bytes=num_bytes)])
            await self.blobs.adopt(self.federation_id, name_of(blob), sealed)
        layout = inspection.layout
        facts = Facts(num_bytes, layout.digest(), layout.updatable().digest(), inspection.finite)
        return RecordBlob(blob.id, self.federation_id, digest, facts, blob.client_id)

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


def fetch_models(home: Path, digests: Iterable[str], into: Path) -> dict[str, Path]:
    """Models of an experiment that has ended, as plain files. Those that are not stored any more are left out."""

    async def fetch() -> dict[str, Path]:
        site = Site(home, seed=0)
        try:
            async with site.database.read() as connection:
                run = await record.run(connection)
            if run is None:
                return {}
            found = await site.storage.find(run.federation_id, list(digests))
            files = {digest: into / digest.removeprefix("sha256:") for digest in found}
            for digest, path in files.items():
                path.write_bytes(b"".join([piece async for piece in site.storage.pieces(found[digest])]))
            return files
        finally:
            await site.close()

    return asyncio.run(fetch())
