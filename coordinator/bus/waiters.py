"""Who waits for what in this process. One future per waiting task, so thousands of long polls cost little."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Self


class Waiter:
    """A registered wish to be woken; remembers a wake-up that comes while nobody awaits it."""

    def __init__(self, waiters: Waiters, key: str) -> None:
        self._waiters = waiters
        self._key = key
        self._is_woken = False
        self._future: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._waiters.add(self._key, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._waiters.remove(self._key, self)

    async def wait(self, timeout_s: float) -> bool:
        """True when woken since it was entered or last waited for, or within `timeout_s`. May be called again."""
        if not self._is_woken and timeout_s > 0:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(timeout_s, self._release)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        woken, self._is_woken = self._is_woken, False
        return woken

    def wake(self) -> None:
        self._is_woken = True
        self._release()

    def _release(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Waiters:
    def __init__(self) -> None:
        self._by_key: dict[str, set[Waiter]] = {}

    def add(self, key: str, waiter: Waiter) -> None:
        self._by_key.setdefault(key, set()).add(waiter)

    def remove(self, key: str, waiter: Waiter) -> None:
        waiters = self._by_key[key]
        waiters.discard(waiter)
        if not waiters:
            del self._by_key[key]

    def wake(self, keys: Iterable[str]) -> None:
        for key in keys:
            for waiter in self._by_key.get(key, ()):
                waiter.wake()

    def keys(self) -> set[str]:
        return set(self._by_key)
