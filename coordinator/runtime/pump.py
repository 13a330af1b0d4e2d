"""The pump: leases commands from the outbox, carries them out, and posts the outcome as a message.

Kernels run in a thread of their own process role (`lethe compute`) or of the embedded coordinator; chores (deferred
messages, retention) run where the API runs. A pump that dies loses nothing: its lease runs out and another takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import structlog

from coordinator.blobs.port import StorageFull
from coordinator.bus.port import Bus
from coordinator.crashpoints import crashpoint
from coordinator.engine import posting
from coordinator.engine.entities import Blob, Facts, Job
from coordinator.engine.messages import JobDone, JobFailed, Message, RecordBlob, Reply
from coordinator.runtime.erasure_steps import ErasureSteps
from coordinator.runtime.kept_updates import KeptUpdates
from coordinator.runtime.scratch import Scratch
from coordinator.runtime.sealed_writer import SealedWriter
from coordinator.runtime.set_aside import SetAside, WorkItem, pause_after, reason_of
from coordinator.runtime.shell import Shell
from coordinator.runtime.storage import Storage, name_of
from coordinator.runtime.supervision import WorkHealth
from coordinator.store import blobs, outbox, references
from coordinator.store.database import Database, TimedOut, Unavailable
from coordinator.store.faults import fault_of
from services.core.errors import InvariantBroken, Rejected
from services.methods.running import run_kernel
from services.sealing.segments import Seal, Unreadable
from services.tensors.errors import KernelFailed
from services.tensors.inspection import InspectingWriter
from services.tensors.streams import Stored

log = structlog.get_logger()
LOOK_EVERY_S = 0.5
"""How often to look without having been rung: the price of a lost wake-up."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


Runner = Callable[[Job, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs of the outbox that are carried out in the same way."""

    bell: str
    """The key that is rung when there is such a job."""
    kinds: tuple[str, ...]
    run: Runner


class Pump:
    """One worker on the outbox; run several for parallel kernels. A job that breaks is set aside, and the next one is
    carried out."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        queue: Queue,
        lease_s: float,
        set_aside: SetAside,
        *,
        rest_s: float = 0.0,
        at_once: int = 1,
    ) -> None:
        """`rest_s`: how long such work may wait for more; `at_once`: how many jobs are carried out side by side, so
        that their outcomes share transactions."""
        self._database, self._bus, self._bell, self._set_aside = database, bus, queue.bell, set_aside
        self._kinds, self._run = queue.kinds, queue.run
        self._lease_s, self._rest_s, self._at_once = lease_s, rest_s, at_once

    async def forever(self, health: WorkHealth) -> None:
        is_rung = False
        with self._bus.waiter(self._bell) as waiter:
            while True:
                try:
                    if (is_rung or await self._has_job()) and await self._some():
                        is_rung = False
                        health.ok()
                    else:
                        health.ok()
                        is_rung = await waiter.wait(LOOK_EVERY_S)
                        if is_rung and self._rest_s:
                            await asyncio.sleep(self._rest_s)
                except Unavailable as error:
                    log.warning("pump.waits", kinds=self._kinds, error=str(error)[:200])
                    health.waits("the database cannot serve")
                    await asyncio.sleep(LOOK_EVERY_S)

    async def drain(self) -> bool:
        """Carry out everything that is ready now; whether there was anything."""
        found = False
        while await self._has_job() and await self._some():
            found = True
        return found

    async def _has_job(self) -> bool:
        async with self._database.read() as connection:
            now = await self._database.about_now(connection)
            return await outbox.has_job(connection, self._kinds, now, self._lease_s)

    async def _some(self) -> bool:
        """Lease what there is, up to `at_once`, and carry it out; whether there was anything."""
        token, jobs = uuid4().hex, list[Job]()
        try:
            async with self._database.write(is_durable=False) as connection:
                now = await self._database.about_now(connection)
                while len(jobs) < self._at_once and (
                    job := await outbox.lease_job(connection, self._kinds, now, self._lease_s, token)
                ):
                    jobs.append(job)
        except Unavailable:
            raise
        except Exception as error:
            return await self._set_unread_aside(token, error)
        if not jobs:
            return False
        keeper = asyncio.create_task(self._keep(jobs, token))
        try:
            await asyncio.gather(*(self._carry_out(job, token) for job in jobs))
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])  # not `await keeper`: that could not tell its cancellation from our own
        return True

    async def _carry_out(self, job: Job, token: str) -> None:
        item = WorkItem(job.kind, job.id, job.run_id)
        try:
            await self._run(job, token)
        except Exception as error:
            fault = None if isinstance(error, OSError) else fault_of(error)  # files and callbacks fail, too
            if fault is None or isinstance(fault, TimedOut):
                self._set_aside.put(item, error)
                await self._return(job.id, token, pause_after(job.num_failures + 1), reason_of(error), is_failure=True)
                return
            await self._return(job.id, token, LOOK_EVERY_S, "the database could not serve", is_failure=False)
            raise fault from error
        self._set_aside.clear(item)

    async def _set_unread_aside(self, token: str, error: Exception) -> bool:
        """The next job's row cannot be read: it must not keep the others from being found."""
        async with self._database.write() as connection:
            now = await self._database.about_now(connection)
            unread = await outbox.lease_unread(connection, self._kinds, now, self._lease_s, token)
        if unread is None:
            return False
        self._set_aside.put(WorkItem("unreadable job", unread.id), error)
        await self._return(unread.id, token, pause_after(unread.num_failures + 1), reason_of(error), is_failure=True)
        return True

    async def _return(self, job_id: UUID, token: str, pause_s: float, error: str, *, is_failure: bool) -> None:
        async with self._database.write() as connection:
            until = await self._database.about_now(connection) + timedelta(seconds=pause_s)
            await outbox.return_job(connection, job_id, token, until, error, is_failure=is_failure)

    async def _keep(self, jobs: Sequence[Job], token: str) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                async with self._database.write(is_durable=False) as connection:
                    until = await self._database.about_now(connection) + timedelta(seconds=self._lease_s)
                    for job in jobs:
                        await outbox.renew_job(connection, job.id, token, until)
            except Exception as error:  # the next time may be in time
                log.warning("lease.not-renewed", job=str(jobs[0].id), error=str(error)[:200])


def kernel_runner(
    database: Database, shell: Shell, storage: Storage, kept_updates: KeptUpdates, scratch: Scratch, executor: Executor
) -> Runner:
    """Run a kernel over stored blobs in the executor and store what it makes."""

    async def run(job: Job, token: str) -> None:
        log.info("kernel.started", kernel=job.kernel, job=str(job.id), run=str(job.run_id), attempt=job.attempt)
        if outcome := await _outcome(job, token, database, storage, kept_updates, scratch, executor):
            if job.epoch > 0:
                crashpoint("erasure.in-recovery")
            is_wanted = await shell_patiently(shell, outcome)
            if not is_wanted and isinstance(outcome, JobDone) and outcome.blob is not None:
                await storage.give_up(job.federation_id, [outcome.blob.blob_id])

    return run


async def _outcome(
    job: Job,
    token: str,
    database: Database,
    storage: Storage,
    kept_updates: KeptUpdates,
    scratch: Scratch,
    executor: Executor,
) -> JobDone | JobFailed | None:
    """None: the result is not wanted any more, and was not stored."""
    loop = asyncio.get_running_loop()
    if job.cohort_id is None:
        raise InvariantBroken("a kernel without a cohort")
    try:
        with scratch.file() as out:
            blob = await storage.sealer.of_job(job.federation_id, job.id, job.cohort_id, job.epoch, job.created_at)
            seal = await storage.sealer.seal_of(blob)
            async with kept_updates.local(job.federation_id, job.inputs) as files:
                crashpoint("kernel.before")
                figures, made = await loop.run_in_executor(executor, _computed, job, files, out, seal)
                crashpoint("kernel.after")
            record = None
            if made is not None:
                digest, facts = made
                blob = replace(blob, digest=digest, num_bytes=facts.num_bytes)
                if not await _announce(database, blob, token):
                    return None
                await storage.blobs.adopt(job.federation_id, name_of(blob), out)
                record = RecordBlob(blob.id, job.federation_id, digest, facts)
            crashpoint("kernel.after-adoption")
            return JobDone(job.id, token, record, figures)
    except StorageFull as error:
        return JobFailed(job.id, token, str(error), retryable=True, storage_full=True)
    except (KernelFailed, Rejected, Unreadable) as error:
        return JobFailed(job.id, token, _reason(error), retryable=False)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:  # of the disk that kernels write to
            return JobFailed(job.id, token, error.strerror or str(error), retryable=True, storage_full=True)
        if not isinstance(error, OSError) and fault_of(error) is not None:
            raise  # the database's fault, not the kernel's
        log.error("kernel.broke", kernel=job.kernel, job=str(job.id), exc_info=error)
        return JobFailed(job.id, token, f"{type(error).__name__}: {error}", retryable=True)


def _reason(error: KernelFailed | Rejected | Unreadable) -> str:
    if isinstance(error, Rejected) and (missing := error.extra.get("digest")):
        return f"{missing} is not stored any more; upload it again or restore it from a backup, then resume the run"
    if isinstance(error, Unreadable):
        return f"stored bytes are damaged: {error} Restore them from a backup, then resume the run"
    return str(error)


def _computed(
    job: Job, files: Mapping[str, Stored], out: Path, seal: Seal
) -> tuple[dict[str, Any], tuple[str, Facts] | None]:
    """A kernel's figures, and what its model is if it made one."""
    with SealedWriter(out, seal) as sealed:
        writer = InspectingWriter(sealed)
        figures = run_kernel(job.kernel or "", dict(job.params), files, writer)
        if sealed.is_empty:
            return figures, None
        digest, inspection, _ = writer.finish()
    layout = inspection.layout
    facts = Facts(inspection.num_bytes, layout.digest(), layout.updatable().digest(), inspection.finite)
    return figures, (digest, facts)


async def _announce(database: Database, blob: Blob, token: str) -> bool:
    """Say what is about to be stored, so that an erasure finds it even if its record never comes. A database that was
    stopped at once may forget it: then the bytes are noise, and are removed."""
    while True:
        try:
            async with database.write(is_durable=False) as connection:
                now = await database.now(connection)
                return await blobs.announce_output(connection, replace(blob, created_at=now), token)
        except Unavailable:
            await asyncio.sleep(LOOK_EVERY_S)


def chore_runner(database: Database, shell: Shell, storage: Storage, erasure_steps: ErasureSteps) -> Runner:
    async def run(job: Job, token: str) -> None:
        match job.kind:
            case "post":
                message = posting.from_job(job)
                crashpoint(f"post.{type(message).__name__}")
                with contextlib.suppress(Rejected):
                    await shell_patiently(shell, message)
            case "drop-blob":
                async with database.write() as connection:
                    await references.release(connection, job.federation_id, [job.params["digest"]])
                await storage.delete_dropped()
            case "fence" | "purge":
                await erasure_steps.run(job)
            case _:
                raise InvariantBroken(f"no chore is called {job.kind}")
        async with database.write() as connection:
            await outbox.finish_chore(connection, job.id, token)

    return run


async def shell_patiently(shell: Shell, message: Message[Reply]) -> Reply:
    """Post a message and keep trying while the database is away; not for ever when it takes too long."""
    while True:
        try:
            return await shell.handle(message)
        except TimedOut:
            raise
        except Unavailable:
            await asyncio.sleep(LOOK_EVERY_S)
