"""What is due when, in virtual time."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from services.core.errors import InvariantBroken

T = TypeVar("T")


@dataclass
class EventQueue(Generic[T]):
    """Things to happen, each under a name of its own. `pop` moves the clock to the earliest and hands it out.

    Equal instants come in the order of their names, so that the outcome does not depend on who put what in first.
    """

    now: float = 0.0
    _heap: list[tuple[float, str]] = field(default_factory=list)
    _due: dict[str, tuple[float, T]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._due)

    def put(self, instant: float, name: str, thing: T) -> None:
        """Have something happen at `instant`; a name that is already there is moved to the new instant."""
        if not math.isfinite(instant) or instant < self.now:
            raise InvariantBroken(f"{name} cannot be due at {instant}: it is {self.now}")
        self._due[name] = (instant, thing)
        heapq.heappush(self._heap, (instant, name))

    def drop(self, name: str) -> None:
        """It will not happen; a name that is not there is no mistake."""
        self._due.pop(name, None)

    def next_instant(self) -> float | None:
        """When something is due next; None when nothing is."""
        while self._heap:
            instant, name = self._heap[0]
            if name in self._due and self._due[name][0] == instant:
                return instant
            heapq.heappop(self._heap)  # moved or dropped
        return None

    def pop(self) -> tuple[str, T]:
        """The next thing and its name; `now` is its instant from here on."""
        instant = self.next_instant()
        if instant is None:
            raise InvariantBroken("nothing is due: look at next_instant() first")
        _, name = heapq.heappop(self._heap)
        self.now = instant
        return name, self._due.pop(name)[1]

    def advance(self, instant: float) -> None:
        """Let time pass up to `instant` without anything happening."""
        earliest = self.next_instant()
        if instant < self.now or (earliest is not None and earliest < instant):
            raise InvariantBroken(f"time cannot go from {self.now} to {instant}; the next thing is due at {earliest}")
        self.now = instant
