"""What the coordinator asks of its bus. Everything here may be lost at any time; the database is the truth.

The bus belongs to one event loop: `publish`, `wake` and `waiter` are called on it, return at once and never fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from coordinator.bus.waiters import Waiter

CREDENTIALS_DROPPED: Final = "credentials-dropped"
"""Topic: ids of credentials that replicas must read again, separated by commas."""

ACTS: Final = "acts"
"""Key: rung after acts were recorded."""


class Bus(Protocol):
    @property
    def is_up(self) -> bool:
        """Whether other replicas and what they wrote down can be reached now."""

    async def start(self) -> None:
        """Call once on the loop before use. Succeeds, within a second, also when the server behind the bus is away."""

    async def close(self) -> None: ...

    def publish(self, topic: str, payload: str) -> None:
        """Hand the payload to the topic's subscribers here (at once) and on other replicas (soon; at most once)."""

    def subscribe(self, topic: str, callback: Callable[[str], None]) -> Callable[[], None]:
        """The callback runs on the event loop and must be quick. Returns what ends the subscription."""

    def wake(self, keys: Iterable[str]) -> None:
        """Wake everybody who waits for one of the keys, here at once, on other replicas in one message.

        Waiters may also wake for no reason (after a lost connection, say): whoever wakes looks again.
        """

    def waiter(self, key: str) -> Waiter:
        """Enter it *before* reading the state to wait on, so that no wake-up falls between reading and waiting:

        with bus.waiter(key) as waiter:
            while not (found := await look()) and await waiter.wait(timeout_s): ...
        """

    async def wait(self, key: str, timeout_s: float) -> bool:
        """True when woken in time. Only for callers with nothing to read first; else `waiter`."""

    def local_keys(self) -> set[str]:
        """Keys that somebody waits for in this process."""

    async def mark_alive(self, client_id: str, ttl_s: float) -> None: ...

    async def alive(self, client_ids: Iterable[str]) -> set[str]:
        """The keys that were marked, on any replica, less than their `ttl_s` ago."""

    async def cache_get(self, key: str) -> bytes | None: ...

    async def cache_set(self, key: str, value: bytes, ttl_s: float) -> None:
        """Cache only what may be up to `ttl_s` out of date: a drop can get lost."""

    async def cache_drop(self, *keys: str) -> None: ...
