"""The bus of a single process: dictionaries. Also the part of every other bus that serves its own process."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from coordinator.bus.waiters import Waiter, Waiters

_CACHE_BYTES: Final = 64 * 2**20


class LocalBus:
    def __init__(self) -> None:
        self._waiters = Waiters()
        self._subscribers: dict[str, list[Callable[[str], None]]] = {}
        self._alive_until: dict[str, float] = {}
        self._cache: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # expiry and value, least recent first
        self._cached_bytes = 0

    @property
    def is_up(self) -> bool:
        return True

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def publish(self, topic: str, payload: str) -> None:
        loop = asyncio.get_running_loop()
        for callback in self._subscribers.get(topic, ()):
            loop.call_soon(callback, payload)  # so that a callback that raises hurts nobody else

    def subscribe(self, topic: str, callback: Callable[[str], None]) -> Callable[[], None]:
        self._subscribers.setdefault(topic, []).append(callback)

        def unsubscribe() -> None:
            callbacks = self._subscribers.get(topic, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if not callbacks:
                self._subscribers.pop(topic, None)

        return unsubscribe

    def wake(self, keys: Iterable[str]) -> None:
        self._waiters.wake(keys)

    def waiter(self, key: str) -> Waiter:
        return Waiter(self._waiters, key)

    async def wait(self, key: str, timeout_s: float) -> bool:
        with self.waiter(key) as waiter:
            return await waiter.wait(timeout_s)

    def local_keys(self) -> set[str]:
        return self._waiters.keys()

    async def mark_alive(self, client_id: str, ttl_s: float) -> None:
        self._alive_until[client_id] = time.monotonic() + ttl_s

    async def alive(self, client_ids: Iterable[str]) -> set[str]:
        now = time.monotonic()
        found = set()
        for client_id in client_ids:
            if (until := self._alive_until.get(client_id)) is not None:
                if now < until:
                    found.add(client_id)
                else:
                    del self._alive_until[client_id]
        return found

    async def cache_get(self, key: str) -> bytes | None:
        expires_at, value = self._cache.get(key, (0.0, b""))
        if time.monotonic() >= expires_at:
            await self.cache_drop(key)
            return None
        self._cache.move_to_end(key)
        return value

    async def cache_set(self, key: str, value: bytes, ttl_s: float) -> None:
        await self.cache_drop(key)
        self._cache[key] = (time.monotonic() + ttl_s, value)
        self._cached_bytes += len(value)
        while self._cached_bytes > _CACHE_BYTES:
            await self.cache_drop(next(iter(self._cache)))

    async def cache_drop(self, *keys: str) -> None:
        for key in keys:
            _, value = self._cache.pop(key, (0.0, b""))
            self._cached_bytes -= len(value)
