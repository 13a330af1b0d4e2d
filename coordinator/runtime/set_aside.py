"""What was set aside because it broke: messages, jobs, runs in a claim. Each is tried again after a pause that grows,
and comes back when its cause is gone; meanwhile its neighbours go on.

The book is this process's own. Jobs also carry their error in their row, where every process sees it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog

from services.core.errors import InvariantBroken

log = structlog.get_logger()
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Something that can be set aside. A user who looks at its `owner`, a run or a request, is told why."""

    kind: str
    id: UUID
    owner: UUID | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    reason: str
    num_failures: int
    again_at: float


class SetAside:
    def __init__(self, clock: Callable[[], float] = time.monotonic, *, is_strict: bool = False) -> None:
        """`is_strict`, for experiments: raise what broke instead."""
        self._clock, self._is_strict = clock, is_strict
        self._entries: dict[WorkItem, _Entry] = {}
        self.totals: Counter[str] = Counter()
        """How often something was set aside, by kind."""

    def put(self, item: WorkItem, error: BaseException) -> None:
        """One that broke while it was set aside already, because several tried it at once, waits no longer for that."""
        if self._is_strict:
            raise error
        known = self._entries.get(item)
        if known is not None and known.again_at > self._clock():
            return
        num_failures = known.num_failures + 1 if known is not None else 1
        pause_s = pause_after(num_failures)
        self._entries[item] = _Entry(reason_of(error), num_failures, self._clock() + pause_s)
        self.totals[item.kind] += 1
        owner = str(item.owner) if item.owner is not None else None
        log.error("thing.set-aside", kind=item.kind, id=str(item.id), owner=owner, pause_s=pause_s, exc_info=error)

    def clear(self, item: WorkItem) -> None:
        if self._entries.pop(item, None) is not None:
            log.info("thing.back", kind=item.kind, id=str(item.id))

    def keep_only(self, kinds: Collection[str], items: Collection[WorkItem]) -> None:
        """Forget what is of these kinds and not among the items any more."""
        for item in [one for one in self._entries if one.kind in kinds and one not in items]:
            self.clear(item)

    def is_due(self, item: WorkItem) -> bool:
        """Whether it may be tried: it was never set aside, or its pause is over."""
        entry = self._entries.get(item)
        return entry is None or entry.again_at <= self._clock()

    def held(self, kind: str) -> set[UUID]:
        """Ids of what must not be tried yet."""
        return {item.id for item in self._current() if item.kind == kind and not self.is_due(item)}

    def counts(self) -> Counter[str]:
        """What is set aside now, by kind."""
        return Counter(item.kind for item in self._current())

    def why(self, *owners: UUID) -> str | None:
        """What to tell a user who looks at one of these; None when nothing of theirs is set aside."""
        return next((entry.reason for item, entry in self._current().items() if item.owner in owners), None)

    def _current(self) -> dict[WorkItem, _Entry]:
        """What nobody has tried for long after it was due is gone, or was carried out by another process."""
        oldest = self._clock() - LONGEST_PAUSE_S
        for item in [item for item, entry in self._entries.items() if entry.again_at < oldest]:
            self.clear(item)
        return self._entries

    def __len__(self) -> int:
        return len(self._entries)


def pause_after(num_failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num_failures - 1, 30))


def reason_of(error: BaseException) -> str:
    """What users are told: our own words and those of the operating system, but of a bug only its kind."""
    what = type(error).__name__
    if isinstance(error, InvariantBroken):
        what = str(error)[:300]
    elif isinstance(error, OSError) and error.strerror:  # without the path
        what = error.strerror
    return f"set aside: {what}; the coordinator tries again by itself, and its log has the trace"
