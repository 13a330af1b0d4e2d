"""Background work that comes back by itself, and says so while it is down.

Each piece of work is a coroutine that never ends. When it does, by an exception or without one, it is started again
after a pause that grows until a turn of it goes well. What is down, and why, is what `/readyz` and `/metrics` tell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

log = structlog.get_logger()
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
HOPELESS_AFTER: Final = 10
"""Deaths without a good turn in between, about a minute of them: a process that does nothing else may as well end."""


class WorkHealth:
    """What a piece of work says of itself after each turn."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """Why it is down; None while it is well."""
        self.since = time.monotonic()
        """When it last went down or came up."""
        self.num_restarts = 0
        self.was_ok = False

    def ok(self) -> None:
        self.was_ok = True
        self._note(None)

    def waits(self, problem: str) -> None:
        """It is alive, and cannot do its work."""
        self._note(problem)

    def died(self, problem: str) -> None:
        self.num_restarts += 1
        self._note(problem)

    def _note(self, problem: str | None) -> None:
        if (problem is None) != (self.problem is None):
            self.since = time.monotonic()
        self.problem = problem


Work = Callable[[WorkHealth], Awaitable[None]]


class Supervisor:
    def __init__(self, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self.health: dict[str, WorkHealth] = {}
        self._first_pause_s = first_pause_s
        self._tasks: list[asyncio.Task[None]] = []
        self._on_hopeless: Callable[[str], None] = lambda problem: None

    def start(self, name: str, work: Work) -> None:
        health = self.health[name] = WorkHealth()
        self._tasks.append(asyncio.create_task(self._keep(name, work, health), name=name))

    def when_hopeless(self, act: Callable[[str], None]) -> None:
        """Call this with what is down, when work dies again and again. It is restarted nevertheless."""
        self._on_hopeless = act

    def down(self) -> dict[str, str]:
        """What does not work now, and why."""
        return {name: health.problem for name, health in self.health.items() if health.problem is not None}

    async def close(self) -> None:
        """End all work in reverse order: what others rely on was started first, and ends last."""
        while self._tasks:
            task = self._tasks.pop()
            task.cancel()
            await asyncio.wait([task])

    async def _keep(self, name: str, work: Work, health: WorkHealth) -> None:
        num_deaths = 0
        while True:
            health.was_ok = False
            error = await _ended(work, health)
            num_deaths = 1 if health.was_ok else num_deaths + 1
            pause_s = min(LONGEST_PAUSE_S, self._first_pause_s * 2 ** (num_deaths - 1))
            health.died(f"{_described(error)}; it is started again")
            log.error("background.died", task=name, deaths=num_deaths, pause_s=pause_s, exc_info=error or False)
            if num_deaths == HOPELESS_AFTER:
                self._on_hopeless(f"{name} died {num_deaths} times in a row: {_described(error)}")
            await asyncio.sleep(pause_s)


async def _ended(work: Work, health: WorkHealth) -> BaseException | None:
    """Run it to its end; returns what it died of. Only our own cancellation goes through."""
    try:
        await work(health)
    except asyncio.CancelledError as cancelled:
        this = asyncio.current_task()
        if this is not None and this.cancelling():
            raise
        return cancelled
    except Exception as error:
        return error
    return None


def _described(error: BaseException | None) -> str:
    return "it ended without an error" if error is None else f"it died of {type(error).__name__}"
