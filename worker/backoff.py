"""How long to wait before asking again: exponential with full jitter, or what the coordinator asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LONGEST_RETRY_AFTER_S: Final = 300.0


def _system_jitter() -> Callable[[], float]:
    return random.SystemRandom().random


@dataclass(frozen=True)
class Backoff:
    """`jitter` draws from [0, 1); the n-th delay is uniform in [0, min(cap_s, first_s * 2^n)]."""

    first_s: float = 0.25
    cap_s: float = 15.0
    jitter: Callable[[], float] = field(default_factory=_system_jitter)

    def delay(self, attempt: int, retry_after_s: float | None = None) -> float:
        """A Retry-After is a lower bound; jitter on top keeps a fleet from coming back in one instant."""
        if retry_after_s is not None:
            return min(retry_after_s, LONGEST_RETRY_AFTER_S) + self.first_s * self.jitter()
        return float(min(self.cap_s, self.first_s * 2.0 ** min(attempt, 30))) * self.jitter()
