"""A coordinator in this process with clients that train a tiny model by a formula: fast, exact, and reproducible.

Everything below HTTP is real: shell, store, pump, kernels, blobs, tombstones. A client's delta depends on its data
(a seed), the model it was given and the task's seed, and on nothing else, as real training does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import sqlalchemy as sa

from coordinator.engine.entities import Task
from coordinator.engine.messages import (
    AcknowledgeExclusions,
    ClaimTasks,
    CreateRun,
    FileErasure,
    SubmitResult,
)
from coordinator.engine.replies import Granted
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.runtime.upload_receiver import Complete
from coordinator.runtime.uploads import UploadRequest
from coordinator.store import exclusions, schema
from coordinator.store import tables as t
from services.core import digests
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.core.seeds import derive
from services.tensors.codec import read, write_file
from services.wire.v1.runs import RunSpec
from services.wire.v1.work import FIGURES_ONLY
from tests.support.schemas import make_ready

SIZE = 64


def new_id() -> UUID:
    return uuid7(datetime.now(UTC), os.urandom(16))


@dataclass(frozen=True)
class Trained:
    client: str
    cohort: str
    round: int
    optimizer: str


@dataclass
class Federation:
    coordinator: Coordinator
    directory: Path
    id: UUID
    clients: dict[str, UUID] = field(default_factory=dict)
    data: dict[str, int] = field(default_factory=dict)
    """The seed of each client's data."""
    samples: dict[str, list[int]] = field(default_factory=dict)
    """The rows of each client's data; what they hold is drawn from the seed."""
    offline: set[str] = field(default_factory=set)
    init: str = ""
    trained: list[Trained] = field(default_factory=list)
    """How each train task was to be carried out."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(client, kind) of each task that came with work of its own: from an erasure."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """What each client's audit says."""
    patience_s: float = 60
    """How long anything is waited for."""
    _working: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def enrol(self, *names: str) -> None:
        now = datetime.now(UTC)
        rows = []
        for name in names:
            self._know(name, new_id())
            rows.append(
                {
                    "id": self.clients[name],
                    "federation_id": self.id,
                    "name": name,
                    "status": "active",
                    "created_at": now,
                    "devices": [],
                }
            )
        async with self.coordinator.database.write() as connection:
            await connection.execute(t.clients.insert(), rows)

    async def recall(self) -> None:
        """Know again whom this federation's database has, with the data that an earlier life gave them."""
        for row in await self.rows(t.clients, t.clients.c.status == "active"):
            self._know(row.name, row.id)
            if row.exclusions_acked is not None:
                await self._leave_out(row.name)

    def _know(self, name: str, client_id: UUID) -> None:
        self.clients[name] = client_id
        self.data.setdefault(name, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))
        self.samples.setdefault(name, list(range(10 + self.data[name] % 7)))

    def work(self, *names: str) -> None:
        """Let these clients serve tasks until the federation closes."""
        for name in names or tuple(self.clients):
            if name not in self._working:
                self._working[name] = asyncio.create_task(self._serve(name))

    def stop_working(self, name: str) -> None:
        self._working.pop(name).cancel()

    async def close(self) -> None:
        for task in self._working.values():
            task.cancel()
        for task in self._working.values():
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.coordinator.close()

    async def create_run(self, **changes: Any) -> UUID:
        spec = RunSpec.model_validate(
            {
                "name": "run",
                "seed": 1,
                "model": {"name": "custom"},
                "init": self.init,
                "stop": {"rounds": 4},
                **changes,
            }
        )
        run_id = new_id()
        await self.coordinator.shell.handle(CreateRun(run_id, self.id, spec))
        return run_id

    async def erase(self, *names: str, **changes: Any) -> UUID:
        erasure_id = new_id()
        message = FileErasure(
            erasure_id=erasure_id,
            federation_id=self.id,
            subjects=names,
            requested_by="test",
            legal_deadline=datetime.now(UTC) + timedelta(days=30),
            salt="00" * 32,
        )
        await self.coordinator.shell.handle(replace(message, **changes))
        return erasure_id

    async def rows(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> list[Any]:
        async with self.coordinator.database.read() as connection:
            return list((await connection.execute(sa.select(table).where(*where))).all())

    async def wait(
        self, table: sa.Table, row_id: UUID, reached: Callable[[Any], bool], timeout_s: float | None = None
    ) -> Any:
        """Asking takes at most a quarter of the time: it would hold up what is waited for."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + (timeout_s or self.patience_s)
        while True:
            asked_at = clock()
            (row,) = await self.rows(table, table.c.id == row_id)
            if reached(row):
                return row
            if asked_at > deadline:
                raise AssertionError(f"not reached: {row}\n{await self.rows(t.cohorts)}")
            await asyncio.sleep(min(0.25, max(0.01, 3 * (clock() - asked_at))))

    async def wait_for_run(self, run_id: UUID, status: str = "completed") -> Any:
        return await self.wait(t.runs, run_id, lambda row: row.status == status or row.status == "failed")

    async def wait_for_erasure(self, erasure_id: UUID, status: str = "completed") -> Any:
        return await self.wait(t.erasures, erasure_id, lambda row: row.status == status or row.status == "failed")

    async def published(self, run_id: UUID) -> dict[tuple[str, int, int], str]:
        """Digests by (cohort, epoch, round)."""
        names = {row.id: row.name for row in await self.rows(t.cohorts, t.cohorts.c.run_id == run_id)}
        rows = await self.rows(t.checkpoints, t.checkpoints.c.run_id == run_id)
        return {(names[row.cohort_id], row.epoch, row.round): row.digest for row in rows}

    async def heads(self, run_id: UUID) -> dict[str, str | None]:
        rows = await self.rows(t.cohorts, t.cohorts.c.run_id == run_id)
        return {row.name: row.head_digest for row in rows if row.phase != "retired"}

    async def _serve(self, name: str) -> None:
        client_id, shell, bus = self.clients[name], self.coordinator.shell, self.coordinator.bus
        while True:
            with bus.waiter(f"client:{client_id}") as waiter:
                if name in self.offline:
                    await asyncio.sleep(0.02)
                    continue
                try:
                    granted = await shell.handle(ClaimTasks(client_id))
                except Rejected as rejected:
                    if rejected.code != "ledger-behind":
                        return
                    await self._leave_out(name)
                    continue
                if not granted:
                    await waiter.wait(0.2)
            for grant in granted:
                with contextlib.suppress(Rejected):
                    await self._answer(name, grant)

    async def _leave_out(self, name: str) -> None:
        async with self.coordinator.database.read() as connection:
            stated = await exclusions.of_client(connection, self.clients[name])
        gone = {row for item in stated.items for row in item.samples}
        self.samples[name] = [row for row in self.samples[name] if row not in gone]
        await self.coordinator.shell.handle(AcknowledgeExclusions(self.clients[name], stated.digest or ""))

    async def _answer(self, name: str, grant: Granted) -> None:
        task = grant.task
        digest = None
        if task.kind == "train":
            self.trained.append(Trained(name, grant.cohort.name, task.round, grant.local.optimizer))
        if grant.work is not None:
            self.asked.append((name, task.kind))
        if task.kind not in FIGURES_ONLY:
            async with self.coordinator.storage.local(self.id, [task.model_digest]) as files:
                base = read(files[task.model_digest])["w"]
            seed = derive(grant.run.spec.seed, "local", grant.cohort.name, task.round, name)
            step = trained(base, self.data[name], seed, self.samples[name])
            digest = await self.put({"w": step if task.kind == "train" else -step}, task)
        num_samples = len(self.samples[name])
        metrics = self.scores.get(name, {}) if task.kind == "audit" else {}
        message = SubmitResult(task.id, task.client_id, task.lease_token or "", digest, num_samples, metrics)
        await self.coordinator.shell.handle(message)

    async def put(self, tensors: dict[str, Any], task: Task | None = None) -> str:
        """As an operator, or as the client that holds the task."""
        path = self.directory / f"{new_id().hex}.safetensors"
        write_file(path, tensors)
        data = path.read_bytes()
        path.unlink()
        return await self.put_bytes(data, task)

    async def put_bytes(self, data: bytes, task: Task | None = None) -> str:
        digest = digests.of_bytes(data)
        client_id, task_id = (None, None) if task is None else (task.client_id, task.id)
        blob = await self.coordinator.uploads.announce(UploadRequest(self.id, client_id, task_id, digest, len(data)))
        if blob.status != "stored":
            received = await self.coordinator.receiver.receive(blob, len(data), _once(data))
            assert isinstance(received, Complete)
            await self.coordinator.uploads.record(blob, received.inspection)
        return digest

    async def is_stored(self, digest: str) -> bool:
        return bool(await self.coordinator.storage.find(self.id, [digest]))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def trained(base: Any, data: int, seed: int, samples: list[int]) -> Any:
    """A step towards the mean of the client's samples, with noise drawn from the task's seed."""
    optimum = sum(np.random.default_rng([data, row]).normal(size=base.shape) for row in samples) / len(samples)
    noise = np.random.default_rng(seed).normal(scale=0.01, size=base.shape)
    return (0.3 * (optimum - base.astype(np.float64)) + noise).astype(np.float32)


@contextlib.asynccontextmanager
async def federation(
    directory: Path, *names: str, url: str | None = None, **settings: Any
) -> AsyncIterator[Federation]:
    directory.mkdir(parents=True, exist_ok=True)
    wanted = Settings(home=directory / "home", database_url=url, **settings)
    coordinator = Coordinator(wanted)
    await make_ready(wanted.url)
    now = datetime.now(UTC)
    made = Federation(coordinator, directory, new_id())
    async with coordinator.database.write() as connection:
        await connection.execute(t.federations.insert().values(id=made.id, name=f"f-{made.id}", created_at=now))
    await coordinator.start_api()
    try:
        await made.enrol(*names)
        made.init = await made.put({"w": np.zeros(SIZE, np.float32)})
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def reopened(directory: Path, url: str | None = None, **settings: Any) -> AsyncIterator[Federation]:
    """The one federation of a home that was left by `federation`, perhaps of an earlier release."""
    coordinator = Coordinator(Settings(home=directory / "home", database_url=url, **settings))
    await schema.upgrade(coordinator.database)
    async with coordinator.database.read() as connection:
        federation_id = (await connection.execute(sa.select(t.federations.c.id))).scalar_one()
    found = Federation(coordinator, directory, federation_id)
    await coordinator.start_api()
    try:
        await found.recall()
        yield found
    finally:
        await found.close()
