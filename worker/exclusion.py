"""Leaving samples out: keeps the coordinator's word, the ledger on disk and the task at hand in agreement.

Nothing is trained or evaluated before the ledger holds everything that the coordinator states; what the ledger holds is
left out also when a coordinator has forgotten it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol
from uuid import UUID

from services.wire.v1.exclusions import MOST_UNKNOWN, Exclusions, ExclusionsAcknowledgement, UnknownSamples
from worker.execution import TaskRunner
from worker.failures import WorkFailed
from worker.ledger import Ledger, LedgerUnusable


class ExclusionTransport(Protocol):
    async def exclusions(self) -> Exclusions: ...

    async def acknowledge(self, acknowledgement: ExclusionsAcknowledgement) -> None: ...


class ExclusionSync:
    """The samples that one client leaves out, in step with the coordinator. `in_thread` runs what blocks, where the
    training runs: data has one user at a time."""

    def __init__(
        self,
        client_id: UUID,
        directory: Path,
        runner: TaskRunner,
        transport: ExclusionTransport,
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._path = directory / f"{client_id}.jsonl"
        self._runner, self._transport, self._in_thread = runner, transport, in_thread
        self._ledger: Ledger | None = None
        self._ensured: str | None = None
        self._problem: WorkFailed | None = None
        self._unknown: list[int] = []

    async def begin(self) -> None:
        """Leave out what the ledger of an earlier life holds. Raises LedgerUnusable."""
        await self._try(None)

    async def ensure(self, digest: str | None) -> None:
        """Returns once what the digest stands for is left out, on disk and acknowledged. Raises WorkFailed with the
        reason when it cannot be."""
        if digest != self._ensured:
            await self.catch_up()
        if self._problem is not None:
            raise self._problem

    async def catch_up(self) -> None:
        """Do what the coordinator states and tell it; or why not, which is raised as WorkFailed, too."""
        stated = await self._transport.exclusions()
        if stated.digest is None:
            return
        try:
            await self._try(stated)
        except LedgerUnusable as error:
            self._problem = WorkFailed("the ledger cannot be written (its agent's own log says more)")
            self._problem.__cause__ = error
        if self._problem is not None:
            told = ExclusionsAcknowledgement(digest=stated.digest, problem=str(self._problem)[:500])
            await self._transport.acknowledge(told)
            raise self._problem
        told = ExclusionsAcknowledgement(digest=stated.digest, unknown=unknown_of(stated, self._unknown))
        await self._transport.acknowledge(told)
        self._ensured = stated.digest

    async def _try(self, stated: Exclusions | None) -> None:
        try:
            await self._in_thread(lambda: self._apply(stated))
            self._problem = None
        except WorkFailed as failed:
            self._problem = failed

    def _apply(self, stated: Exclusions | None) -> None:
        if self._ledger is None:
            self._ledger = Ledger(self._path)
        if stated is not None:
            self._ledger.add(stated.items)
        if samples := self._ledger.samples:
            self._unknown = self._runner.leave_out(samples)


def unknown_of(stated: Exclusions, missing: Iterable[int]) -> list[UnknownSamples]:
    """The missing samples that each request names, as many of them as may be told."""
    all_missing = set(missing)
    found = [(one.erasure_id, sorted(all_missing & set(one.samples))[:MOST_UNKNOWN]) for one in stated.items]
    return [UnknownSamples(erasure_id=erasure_id, samples=samples) for erasure_id, samples in found if samples]
