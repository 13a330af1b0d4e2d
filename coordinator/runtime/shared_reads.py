"""One reading for all who ask for the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class SharedReads:
    """Whoever asks gets what was read after it had asked, never before: a reading that has begun is not joined, but all
    who ask meanwhile share the next one. So however many watch, there is one reading after the other."""

    def __init__(self) -> None:
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        self._last: dict[Hashable, asyncio.Task[Any]] = {}

    async def read(self, key: Hashable, reading: Callable[[], Awaitable[T]]) -> T:
        task: asyncio.Task[T] | None = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._following(key, self._last.get(key), reading))
        return await asyncio.shield(task)  # who goes away takes it from nobody else

    async def _following(self, key: Hashable, last: asyncio.Task[Any] | None, reading: Callable[[], Awaitable[T]]) -> T:
        if last is not None:
            await asyncio.wait([last])
        own = self._last[key] = self._next.pop(key)
        try:
            return await reading()
        finally:
            if self._last.get(key) is own:
                del self._last[key]
