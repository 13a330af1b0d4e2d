"""The coordinator of an experiment: production's parts, in one process, moved by hand instead of by timers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from coordinator.blobs.disk import pieces_of
from coordinator.blobs.files import FileBlobStore
from coordinator.engine.entities import Task
from coordinator.engine.react import CLOCK, client_key
from coordinator.keys.directory import DirectoryKeys
from coordinator.runtime.parts import Parts, Platform
from coordinator.runtime.upload_receiver import Complete
from coordinator.runtime.uploads import UploadRequest
from coordinator.store import accounts, experiment_queries, schema
from coordinator.store.database import Database
from lethe.simulation.clock import BEGINNING, NamedEntropy, RecordingBus, VirtualClock, virtual_s
from lethe.simulation.training import AtOnce
from services.core.errors import InvariantBroken
from services.core.ids import uuid7
from worker.execution import Update

T = TypeVar("T")
JOB_LEASE_S: Final = 86400.0
JOBS_AT_ONCE: Final = 64
ENROLLED_AT_ONCE: Final = 10_000
FETCHED_MODELS: Final = 256
CLIENT_KEY: Final = client_key(UUID(int=0)).removesuffix(str(UUID(int=0)))


class SimulatedCoordinator(Parts):
    """Nothing waits for the disk: what is committed outlives the process but not the machine."""

    bus: RecordingBus

    def __init__(self, home: Path, seed: int) -> None:
        self.clock = VirtualClock()
        self.entropy = NamedEntropy(seed, self.clock)
        (home / "evidence").mkdir(parents=True, exist_ok=True)
        super().__init__(
            Platform(
                Database(f"sqlite:///{home.absolute() / 'lethe.db'}", clock=self.clock, is_scratch=True),
                RecordingBus(),
                FileBlobStore(home / "blobs", is_scratch=True),
                DirectoryKeys(home / "evidence" / "keys", is_durable=False),
                home / "evidence",
                home / "scratch",
                AtOnce(),
                self.entropy,
                is_experiment=True,
            )
        )
        queues = (self.retention, self.chores, self.history, self.kernels)
        self._pumps = [self.pump(queue, JOB_LEASE_S, at_once=JOBS_AT_ONCE) for queue in queues]
        self._job_bells = {queue.bell for queue in queues}
        self._models = home / "scratch" / "models"
        self._fetched: list[Path] = []
        self.federation_id = uuid7(BEGINNING, self.entropy.draw("federation"))
        self.client_ids: dict[str, UUID] = {}
        self.names: dict[str, str] = {}
        """Clients' names by the text of their ids."""

    async def open(self) -> None:
        """Go on where the database stopped, if it is not new."""
        await schema.create(self.database)
        await self.kept_updates.sweep()
        async with self.database.write() as connection:
            await experiment_queries.free_jobs(connection)
            if (newest := await experiment_queries.newest_instant(connection)) is not None:
                self.clock.move_to(virtual_s(newest))
        self.shell.start()

    async def enrol(self, names: list[str]) -> None:
        """Make clients of those names that are not clients yet."""
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

    async def receive(self, update: Update, task: Task | None = None) -> None:
        """Take a file in as an upload of the task's client, or of an operator."""
        client_id, task_id = (None, None) if task is None else (task.client_id, task.id)
        wanted = UploadRequest(self.federation_id, client_id, task_id, update.digest, update.num_bytes)
        try:
            blob = await self.uploads.announce(wanted)
            if blob.status == "stored":  # in a life that was cut short
                return
            received = await self.receiver.receive(blob, update.num_bytes, _pieces(update.path))
            if not isinstance(received, Complete):
                raise InvariantBroken(f"{update.path} became shorter while it was read")
            await self.uploads.record(blob, received.inspection)
        finally:
            update.path.unlink()

    async def turn(self) -> set[str] | None:
        """Do what bells were rung for. Returns the ids of the clients among them; None when no bell was rung."""
        jobs = self._job_bells
        rung = {key for key in self.bus.take() if key in jobs or key == CLOCK or key.startswith(CLIENT_KEY)}
        if not rung:
            return None
        if rung & jobs:
            await self._drain()
        if CLOCK in rung:
            await self.clockwork.tick()
        return {key.removeprefix(CLIENT_KEY) for key in rung if key.startswith(CLIENT_KEY)}

    async def tick(self) -> None:
        """Deadlines that have passed now, jobs whose pause is over."""
        await self.clockwork.tick()
        await self._drain()

    async def _drain(self) -> None:
        for pump in self._pumps:
            await pump.drain()


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    for piece in pieces_of(path):
        yield piece


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, also where a loop runs already, as in a notebook: then in a thread with a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def fetch_models(home: Path, digests: Iterable[str], into: Path) -> dict[str, Path]:
    """Models of an experiment that has ended, as plain files. Those that are not stored any more are left out."""

    async def fetch() -> dict[str, Path]:
        coordinator = SimulatedCoordinator(home, seed=0)
        try:
            async with coordinator.database.read() as connection:
                run = await experiment_queries.run(connection)
            if run is None:
                return {}
            found = await coordinator.storage.find(run.federation_id, list(digests))
            files = {digest: into / digest.removeprefix("sha256:") for digest in found}
            for digest, path in files.items():
                path.write_bytes(b"".join([piece async for piece in coordinator.storage.pieces(found[digest])]))
            return files
        finally:
            await coordinator.close()

    return run_to_end(fetch())
