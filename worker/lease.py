"""One task in hand: its lease is kept alive by heartbeats while the agent works on it, and `lost` when the work is no
longer wanted. A coordinator that does not answer is no reason to stop: it may welcome the result when it is back."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

from services.wire.v1.work import Heartbeat, TaskGrant
from worker.answers import CoordinatorRefused, Dropped, TryLater
from worker.transport import Transport


class Lease:
    """`progress` and `stop` are shared with the training thread: it writes the one and polls the other."""

    def __init__(self, grant: TaskGrant, transport: Transport) -> None:
        self.grant = grant
        self.progress = 0.0
        self.stop = threading.Event()
        self.lost = asyncio.Event()
        self.why_lost: CoordinatorRefused | None = None
        self.awaiting_verdict = False
        """The submission is under way: its own answer says more than that of a heartbeat which it overtakes."""
        self._transport = transport

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def release(self) -> None:
        """No more heartbeats."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])  # not `await self._keeper`: that would swallow a cancellation of our own

    async def _keep(self) -> None:
        every_s = self.grant.heartbeat_every_s
        failures = 0
        pause_s = every_s
        while True:
            await asyncio.sleep(pause_s)
            heartbeat = Heartbeat(lease_token=self.grant.lease_token, progress=min(max(self.progress, 0.0), 1.0))
            try:
                reply = await self._transport.heartbeat_once(self.grant.task_id, heartbeat)
            except TryLater as later:
                delay_s = self._transport.backoff.delay(failures, later.retry_after_s)
                pause_s = min(every_s, delay_s)
                failures += 1
                self._transport.on_retry(later, pause_s)
                continue
            except CoordinatorRefused as no:
                verdict: CoordinatorRefused | None = no
            else:
                cancelled = Dropped("cancelled", "the coordinator no longer wants this work")
                verdict = cancelled if reply.directive == "cancel" else None
            failures, pause_s = 0, every_s
            if verdict is not None and not self.awaiting_verdict:
                return self._lose(verdict)

    def advance(self, fraction: float) -> None:
        self.progress = fraction

    def fraction_done(self) -> float:
        return self.progress

    def _lose(self, why: CoordinatorRefused) -> None:
        self.why_lost = why
        self.stop.set()
        self.lost.set()
