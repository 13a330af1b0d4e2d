"""Time and chance under control: the virtual clock, a bus that only notes who was rung for, ids named by what they are
for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from coordinator.bus.local import LocalBus
from coordinator.engine.messages import Message

BEGINNING: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class VirtualClock:
    """Seconds since the beginning of the experiment, whole microseconds like the instants in rows."""

    now_s: float = 0.0

    def __call__(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.now_s)

    def move_to(self, virtual_s: float) -> None:
        self.now_s = max(self.now_s, virtual_s)


def whole(seconds: float) -> float:
    return round(seconds, 6)


def virtual_s(instant: datetime) -> float:
    return (instant - BEGINNING).total_seconds()


class RecordingBus(LocalBus):
    """Nobody waits: who was rung for is looked up when it is convenient."""

    def __init__(self) -> None:
        super().__init__()
        self._rung: set[str] = set()

    def wake(self, keys: Iterable[str]) -> None:
        self._rung.update(keys)

    @property
    def has_rung(self) -> bool:
        return bool(self._rung)

    def take(self) -> set[str]:
        """Everybody rung for since the last time."""
        rung, self._rung = self._rung, set()
        return rung


@dataclass
class NamedEntropy:
    """The same message at the same instant makes the same ids in every run of a scenario, interrupted or not.

    A message that comes again at its instant gets others, also when the first time was before the process was killed:
    the database refuses the ids that are taken, and the shell tries again with the next.
    """

    seed: int
    clock: VirtualClock
    _instant: float = -1.0
    _seen: Counter[str] = field(default_factory=Counter)

    def __call__(self, message: Message[Any]) -> bytes:
        if self._instant != self.clock.now_s:
            self._instant = self.clock.now_s
            self._seen.clear()
        name = _name(message)
        self._seen[name] += 1
        return self.draw(f"{name}\x1f{self._seen[name]}")

    def draw(self, name: str) -> bytes:
        return hashlib.sha256(f"{self.seed}\x1f{self.clock.now_s}\x1f{name}".encode()).digest()


def _name(message: Any) -> str:
    """Lease tokens of jobs are drawn from the machine."""
    return repr(replace(message, lease_token="") if hasattr(message, "lease_token") else message)
