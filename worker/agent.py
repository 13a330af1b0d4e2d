"""One agent serves one client: open a session, then claim, carry out and submit until told to stop.

A session is opened at the start and again only after a claim whose answer got lost: opening one makes the coordinator
hand out this client's leased tasks again, which recovers the lost grant at once, and would take away work in hand. So
an agent that is training rides out a restart of the coordinator and submits with the token it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeVar

from services.audit.spec import Canary
from services.core.errors import InvariantBroken, Rejected
from services.recovery.task import RecoveryTask
from services.wire.v1.work import PROTOCOL, Failure, Session, SessionRequest, Submission, TaskGrant, TaskKind
from worker.answers import BlobMissing, CoordinatorRefused, Dropped, LedgerBehind, Refused, Stopped, TryLater
from worker.cache import ModelCache
from worker.exclusion import ExclusionSync
from worker.execution import GrantedTask, Result, TaskRunner
from worker.failures import WorkFailed, failure_of
from worker.journal import Journal
from worker.kept import KeptSets
from worker.lease import Lease
from worker.progress import Reporter
from worker.shutdown import Shutdown
from worker.superseded_models import CacheCleaner
from worker.transport import Transport

POLL_S: Final = 25.0
HAND_BACK_WITHIN_S: Final = 5.0
ERASED: Final = "client-erased"
KEPT_FOR: Final[frozenset[TaskKind]] = frozenset({"train", "evaluate", "profile"})
"""Kinds of tasks whose models are worth keeping. Those of an erasure bring models that are being forgotten."""
MAX_UPLOADS: Final = 5
"""How often a result is uploaded anew when the coordinator keeps losing it."""
HANDED_IN_AT_ONCE_BYTES: Final = 1 << 20
"""Updates up to this size are uploaded and submitted in one request. What takes longer stops when its lease is lost."""

T = TypeVar("T")


class Ending(IntEnum):
    """Exit codes of the worker."""

    DONE = 0
    STOPPED = 1
    UNUSABLE = 2
    NOTHING_TO_DO = 3


@dataclass(frozen=True)
class Shared:
    """What the agents of one process share."""

    cache: ModelCache
    ledger_dir: Path
    pool: Executor
    """Bounds how many tasks train at a time."""
    shutdown: Shutdown
    version: str


class Agent:
    def __init__(
        self,
        shared: Shared,
        *,
        transport: Transport,
        runner: TaskRunner,
        reporter: Reporter,
        canary: Canary | None = None,
    ) -> None:
        self._cache, self._ledger_dir, self._pool = shared.cache, shared.ledger_dir, shared.pool
        self._shutdown, self._version = shared.shutdown, shared.version
        self._transport, self._runner, self._reporter, self._canary = transport, runner, reporter, canary
        self._exclusions: ExclusionSync | None = None
        self._journal: Journal | None = None
        self._cache_cleaner = CacheCleaner(transport, shared.cache)
        self._session: Session | None = None
        self._had_session = False
        self._max_blob_bytes = 0

    async def run(self, *, once: bool = False, wait_s: float = POLL_S) -> Ending:
        """Serve until shutdown. `once`: carry out what the first claim brings, or give up after `wait_s`.

        Raises what loading the client's task raises: without a task there is nothing to serve.
        """
        devices = await self._in_thread(self._runner.load)
        request = SessionRequest(agent_version=self._version, protocol=PROTOCOL, devices=devices, canary=self._canary)
        give_up_at = asyncio.get_running_loop().time() + wait_s if once else math.inf
        cleaning = asyncio.create_task(self._cache_cleaner.forever())
        try:
            while not self._shutdown.requested.is_set():
                claim = asyncio.create_task(self._claim(request, give_up_at))
                await self._first(claim, self._shutdown.requested)
                grants = await _result_or_cancel(claim)
                if grants:
                    await self._carry_out_all(grants)
                if once:
                    return self._ending_of_once(grants)
        except CoordinatorRefused as no:
            if no.code == ERASED:
                self._runner.kept.drop_all()
                self._reporter.erased(no, is_cache_empty=self._cache.drop_all())
            else:
                self._reporter.stopped(no)
            return Ending.STOPPED
        finally:
            cleaning.cancel()
            await asyncio.wait([cleaning])
            if not cleaning.cancelled():
                cleaning.result()
        return Ending.DONE

    def _ending_of_once(self, grants: list[TaskGrant] | None) -> Ending:
        if grants or self._shutdown.requested.is_set():
            return Ending.DONE
        if not self._had_session:
            self._reporter.stopped(Refused("unreachable", "no session could be opened within the wait"))
            return Ending.STOPPED
        self._reporter.nothing_to_do()
        return Ending.NOTHING_TO_DO

    # claiming

    async def _claim(self, request: SessionRequest, give_up_at: float) -> list[TaskGrant]:
        """Insist until there is work; empty only when `give_up_at` (loop time) has passed."""
        loop = asyncio.get_running_loop()
        fruitless = 0
        while True:
            asked_at = loop.time()
            try:
                if self._session is None:
                    self._session = await self._open_session(request)
                self._runner.kept.forget_unused()
                wait_s = math.ceil(min(POLL_S, self._session.max_wait_s, max(0.0, give_up_at - asked_at)))
                if grants := await self._transport.claim_once(wait_s):
                    return grants
                if loop.time() - asked_at >= min(1.0, wait_s):
                    fruitless = 0
                    pause_s = 0.0
                else:  # answered without waiting: do not turn that into a busy loop
                    fruitless += 1
                    pause_s = self._transport.backoff.delay(fruitless)
            except TryLater as later:
                if not later.answered:
                    self._session = None
                pause_s = self._transport.backoff.delay(fruitless, later.retry_after_s)
                fruitless += 1
                self._reporter.retrying(later, pause_s)
            except LedgerBehind:
                pause_s = await self._leave_out(fruitless)
                fruitless += 1
            except Refused as refused:
                if not self._had_session:
                    raise
                pause_s = self._transport.backoff.delay(fruitless)  # most likely something between us, for a while
                fruitless += 1
                self._reporter.retrying(refused, pause_s)
            if loop.time() >= give_up_at:
                return []
            await asyncio.sleep(min(pause_s, max(0.0, give_up_at - loop.time())))

    async def _open_session(self, request: SessionRequest) -> Session:
        session = await self._transport.open_session_once(request)
        self._had_session, self._max_blob_bytes = True, session.max_blob_bytes
        self._cache_cleaner.begin_session()
        self._reporter.session_opened(session)
        if self._journal is None:
            self._journal = Journal(self._ledger_dir, session.client_id, session.client_name, self._transport.address)
        if self._exclusions is None:
            key_file = self._ledger_dir / f"{session.client_id}.key"
            self._runner.kept = KeptSets(self._cache.directory / "kept" / str(session.client_id), key_file)
            self._exclusions = ExclusionSync(
                session.client_id, self._ledger_dir, self._runner, self._transport, self._in_thread
            )
            await self._exclusions.begin()
        return session

    async def _leave_out(self, fruitless: int) -> float:
        """Take note of the samples to leave out. Returns how long to wait before the next claim."""
        try:
            await self._exclusion_sync().catch_up()
        except WorkFailed as failed:
            self._reporter.cannot_leave_out(failed)
            return self._transport.backoff.delay(fruitless)
        except Refused as refused:  # changed while it was read
            self._reporter.retrying(refused, 0.0)
        return 0.0

    def _exclusion_sync(self) -> ExclusionSync:
        if self._exclusions is None:
            raise InvariantBroken("work without a session")
        return self._exclusions

    # working

    async def _carry_out_all(self, grants: list[TaskGrant]) -> None:
        """One after the other; all leases are kept alive from the start."""
        async with contextlib.AsyncExitStack() as stack:
            leases = [await stack.enter_async_context(Lease(grant, self._transport)) for grant in grants]
            for lease in leases:
                self._reporter.claimed(lease.grant, lease.fraction_done)
                if self._shutdown.requested.is_set():
                    await self._hand_back(lease)
                else:
                    await self._carry_out(lease)
                await lease.release()

    async def _carry_out(self, lease: Lease) -> None:
        work = asyncio.create_task(self._work(lease))
        try:
            await self._first(work, lease.lost, self._shutdown.overdue)
            if lease.why_lost is not None:
                await self._abandon(work, lease)
                if isinstance(lease.why_lost, Stopped):
                    raise lease.why_lost
                self._reporter.dropped(lease.grant, lease.why_lost)
            elif not work.done():
                lease.stop.set()
                await self._hand_back(lease)
            else:
                work.result()
        finally:
            await self._abandon(work, lease)

    async def _work(self, lease: Lease) -> None:
        """Carry out a task, from grant to submission. Ends quietly once `lease.stop` is set: who set it says why."""
        grant = lease.grant
        result: Result | None = None
        try:
            await self._exclusion_sync().ensure(grant.exclusions)
            async with contextlib.AsyncExitStack() as stack:
                paths = {}
                for digest in (grant.weights, *(grant.work.blobs() if grant.work is not None else ())):
                    # All are models of one layout, hence of one size.
                    keeps = grant.kind in KEPT_FOR or isinstance(grant.work, RecoveryTask)
                    hold = self._cache.hold(digest, grant.weights_bytes, self._transport.download, keeps=keeps)
                    paths[digest] = await stack.enter_async_context(hold)
                granted = GrantedTask(grant, paths[grant.weights], lease.advance, lease.stop.is_set, paths)
                result = await self._in_thread(lambda: self._runner.execute(granted), lease.stop.set)
            if not lease.stop.is_set():
                await self._deliver(lease, result)
                self._reporter.submitted(grant, result.num_samples, result.metrics)
                self._note(grant, result)
        except Stopped:
            raise
        except Dropped as dropped:
            self._reporter.dropped(grant, dropped)
        except Exception as error:  # the client's own code may raise anything
            if not lease.stop.is_set():
                await self._report_failure(lease, error)
        finally:
            if result is not None and result.update is not None:
                result.update.path.unlink(missing_ok=True)

    def _note(self, grant: TaskGrant, result: Result) -> None:
        if self._journal is not None:
            update = (result.update.digest, result.update.num_bytes) if result.update is not None else None
            self._journal.note(grant, result.num_samples, update, list(result.metrics))

    async def _deliver(self, lease: Lease, result: Result) -> None:
        grant, update = lease.grant, result.update
        if update is not None and update.num_bytes > self._max_blob_bytes:
            raise Rejected("too-large", f"the update has {update.num_bytes} bytes, allowed are {self._max_blob_bytes}")
        submission = Submission(
            lease_token=grant.lease_token,
            update=update.digest if update is not None else None,
            num_samples=result.num_samples,
            metrics=result.metrics,
        )
        for upload in range(MAX_UPLOADS):
            lease.awaiting_verdict = is_small = update is not None and update.num_bytes <= HANDED_IN_AT_ONCE_BYTES
            try:
                if update is not None:
                    maybe_started = grant.attempt > 1 or upload > 0
                    is_submitted = await self._transport.upload(
                        update.digest,
                        update.path,
                        grant.task_id,
                        maybe_started=maybe_started,
                        result=submission if is_small else None,
                    )
                    if is_submitted:
                        return
                lease.awaiting_verdict = True
                await self._transport.submit(grant.task_id, submission)
                return
            except BlobMissing as missing:
                self._reporter.retrying(missing, 0.0)
            finally:
                lease.awaiting_verdict = False
        raise Refused("blob-missing", f"the coordinator lost the update {MAX_UPLOADS} times")

    async def _report_failure(self, lease: Lease, error: Exception) -> None:
        failure = failure_of(error, lease.grant.lease_token)
        self._reporter.failed(lease.grant, error, retryable=failure.retryable)
        try:
            await self._transport.fail(lease.grant.task_id, failure)
        except (Dropped, Refused, BlobMissing) as no:
            self._reporter.dropped(lease.grant, no)

    async def _hand_back(self, lease: Lease) -> None:
        self._reporter.handed_back(lease.grant)
        failure = Failure(
            lease_token=lease.grant.lease_token, retryable=True, handed_back=True, reason="agent shutting down"
        )
        with contextlib.suppress(TimeoutError, CoordinatorRefused):  # otherwise the lease runs out by itself
            async with asyncio.timeout(HAND_BACK_WITHIN_S):
                await self._transport.fail(lease.grant.task_id, failure)

    # waiting

    async def _in_thread(self, function: Callable[[], T], ask_to_stop: Callable[[], None] = lambda: None) -> T:
        """Run in the pool. When cancelled, `ask_to_stop` and wait: models and data have one user at a time."""
        job = self._pool.submit(function)
        running = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            ask_to_stop()
            if not job.cancel():
                await asyncio.wait([running])
                running.exception()  # how abandoned work ends interests nobody
            raise

    async def _first(self, task: asyncio.Task[T], *events: asyncio.Event) -> None:
        """Return when the task is done or an event is set."""
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait([task, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _abandon(self, work: asyncio.Task[None], lease: Lease) -> None:
        """Wait until the work has ended; not for long once shutdown is overdue, because no thread can be killed."""
        lease.stop.set()
        work.cancel()
        await self._first(work, self._shutdown.overdue)
        await asyncio.wait([work], timeout=HAND_BACK_WITHIN_S)
        if work.done() and not work.cancelled():
            work.exception()  # whoever needs it has seen it


async def _result_or_cancel(task: asyncio.Task[T]) -> T | None:
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait([task])
    return None
