"""The scenario's script: whatever happens to the run besides training. Each event happens once, over restarts too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from coordinator.engine.entities import ENDED, Run
from coordinator.engine.messages import FileErasure, JoinRun, Message, RemoveClient
from coordinator.runtime.filing import filing_of
from coordinator.store import experiment_queries
from coordinator.store.inbox import InboxKey
from lethe.failures import CommandFailed
from lethe.simulation.coordinator import SimulatedCoordinator
from lethe.simulation.scenario import Event, Scenario, client_name
from services.core import digests
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.simulation.event_queue import EventQueue

PRINCIPAL: Final = "scenario"


class Script:
    def __init__(self, coordinator: SimulatedCoordinator, scenario: Scenario, event_queue: EventQueue[str]) -> None:
        self._coordinator, self._scenario, self._event_queue = coordinator, scenario, event_queue
        self.pending = dict(enumerate(scenario.script))
        self._is_due: set[int] = set()

    async def resume(self) -> None:
        """Forget what happened before; put what has its time into the event queue."""
        async with self._coordinator.database.read() as connection:
            done = await experiment_queries.answered(connection, PRINCIPAL)
        self.pending = {number: event for number, event in self.pending.items() if str(number) not in done}
        for number, event in self.pending.items():
            if event.at_s is not None:
                self._event_queue.put(max(self._event_queue.now, event.at_s), f"script/{number:06}", "script")

    def call(self, name: str) -> None:
        """The time of an event has come."""
        self._is_due.add(int(name))

    async def play(self, run: Run) -> bool:
        """Let the first event happen whose moment has come; whether there was one."""
        for number, event in self.pending.items():
            if number in self._is_due or await self._has_come(event, run):
                await self._happen(number, event, run)
                del self.pending[number]
                return True
        return False

    def what_never_came(self) -> str | None:
        """The events whose moment never came, when nothing is left to wait for."""
        if not self.pending:
            return None
        names = ", ".join(f"script.{number}" for number in self.pending)
        return f"the moment of {names} never came: the run had ended before"

    async def _has_come(self, event: Event, run: Run) -> bool:
        if event.at_s is not None:
            return False
        async with self._coordinator.database.read() as connection:
            if event.after_round is not None:
                reached = await experiment_queries.slowest_round(connection)
                return reached is not None and reached >= event.after_round
            return run.status in ENDED and not await experiment_queries.open_erasures(connection)

    async def _happen(self, number: int, event: Event, run: Run) -> None:
        if event.join is not None:
            await self._coordinator.enrol(self._newcomers(number))
        for position, message in enumerate(self._messages(number, event, run)):
            key = str(number) if position == 0 else f"{number}.{position}"
            inbox_key = InboxKey(PRINCIPAL, "script", key, digests.of_json(event.model_dump(mode="json")), run.id)
            try:
                await self._file(message, inbox_key)
            except Rejected as rejected:
                raise CommandFailed(f"script.{number} was refused: {rejected.detail}") from rejected

    async def _file(self, message: Message[Any], inbox_key: InboxKey) -> None:
        """Nobody is there to ask for another method when one does not apply, so an erasure's fallback does that."""
        try:
            await self._coordinator.shell.handle_once(message, inbox_key)
        except Rejected as rejected:
            if rejected.code != "method-unavailable" or not isinstance(message, FileErasure):
                raise
            if message.fallback is None:
                raise
            instead = replace(message, method=message.fallback, params={}, guarantee="exact", fallback=None, audit=None)
            await self._coordinator.shell.handle_once(instead, inbox_key)

    def _messages(self, number: int, event: Event, run: Run) -> list[Message[Any]]:
        if event.join is not None:
            return [JoinRun(run.id, run.federation_id, tuple(self._newcomers(number)))]
        if event.leave is not None:
            return [RemoveClient(self._coordinator.client_ids[name]) for name in event.leave]
        return [self._erasure(number, event, run.federation_id)]

    def _erasure(self, number: int, event: Event, federation_id: UUID) -> FileErasure:
        now, drawn = self._coordinator.clock(), self._coordinator.entropy.draw(f"script/{number}")
        return filing_of(
            event.request(),
            erasure_id=uuid7(now, drawn),
            federation_id=federation_id,
            requested_by=PRINCIPAL,
            now=now,
            salt=drawn,
        )

    def _newcomers(self, number: int) -> list[str]:
        """Numbered in the order of the script."""
        before = self._scenario.clients + sum(event.join or 0 for event in self._scenario.script[:number])
        return [client_name(before + i) for i in range(self._scenario.script[number].join or 0)]
