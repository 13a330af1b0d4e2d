"""The bus across replicas, over Redis or Valkey.

Losing the server costs latency only: every failure becomes a count in `num_failures` and, when the state changes, a log
line. While the server is away each replica serves itself; waiters are swept by their owner (`local_keys`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from coordinator.bus.local import LocalBus
from coordinator.bus.waiters import Waiter

T = TypeVar("T")

_TIMEOUT_S: Final = 1.0
_PING_EVERY_S: Final = 5.0
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 2.0
_LONGEST_QUEUE: Final = 10_000
_LOST: Final = (RedisError, OSError)  # time-outs are OSErrors
_log = structlog.get_logger()


class RedisBus:
    """`prefix` separates deployments that share a server."""

    def __init__(self, url: str, prefix: str = "lethe") -> None:
        self.num_failures = 0
        self._local = LocalBus()
        self._prefix = prefix
        self._channel = f"{prefix}:bus"
        self._origin = secrets.token_hex(8)
        self._client = _connect(url, num_retries=1)  # one: a pooled connection may have died with the last server
        self._listening_client = _connect(url, num_retries=0)
        self._is_listening = False
        self._is_loss_logged = False
        self._asks_again_at = 0.0
        self._wakes: dict[str, None] = {}  # an ordered set
        self._messages: deque[tuple[str, str]] = deque(maxlen=_LONGEST_QUEUE)
        self._has_outgoing = asyncio.Event()
        self._has_tried = asyncio.Event()
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        return self._is_listening and time.monotonic() >= self._asks_again_at

    async def start(self) -> None:
        self._tasks = {asyncio.create_task(self._listen()), asyncio.create_task(self._send())}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await self._has_tried.wait()

    async def close(self) -> None:
        self._is_closing = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            # More than once: the client library can lose a cancellation while it connects.
            _, self._tasks = await asyncio.wait(self._tasks, timeout=0.1)
        with contextlib.suppress(*_LOST):
            await self._client.aclose()
            await self._listening_client.aclose()

    def publish(self, topic: str, payload: str) -> None:
        self._local.publish(topic, payload)
        self._messages.append((topic, payload))
        self._has_outgoing.set()

    def subscribe(self, topic: str, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._local.subscribe(topic, callback)

    def wake(self, keys: Iterable[str]) -> None:
        keys = tuple(keys)
        self._local.wake(keys)
        if keys and len(self._wakes) < _LONGEST_QUEUE:
            self._wakes.update(dict.fromkeys(keys))
            self._has_outgoing.set()

    def waiter(self, key: str) -> Waiter:
        return self._local.waiter(key)

    async def wait(self, key: str, timeout_s: float) -> bool:
        return await self._local.wait(key, timeout_s)

    def local_keys(self) -> set[str]:
        return self._local.local_keys()

    async def mark_alive(self, client_id: str, ttl_s: float) -> None:
        await self._local.mark_alive(client_id, ttl_s)
        await self._ask(lambda: self._client.set(f"{self._prefix}:alive:{client_id}", b"1", px=_milliseconds(ttl_s)))

    async def alive(self, client_ids: Iterable[str]) -> set[str]:
        asked = tuple(client_ids)
        if not asked:
            return set()
        marks = await self._ask(lambda: self._client.mget([f"{self._prefix}:alive:{name}" for name in asked])) or []
        elsewhere = {name for name, mark in zip(asked, marks, strict=False) if mark is not None}
        return elsewhere | await self._local.alive(asked)

    async def cache_get(self, key: str) -> bytes | None:
        value: bytes | None = await self._ask(lambda: self._client.get(f"{self._prefix}:cache:{key}"))
        return value

    async def cache_set(self, key: str, value: bytes, ttl_s: float) -> None:
        await self._ask(lambda: self._client.set(f"{self._prefix}:cache:{key}", value, px=_milliseconds(ttl_s)))

    async def cache_drop(self, *keys: str) -> None:
        if keys:
            await self._ask(lambda: self._client.delete(*(f"{self._prefix}:cache:{key}" for key in keys)))

    async def _ask(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """The answer, or None. After a failure nothing is asked for a moment, so that an unreachable server does not
        cost every caller its time-out."""
        if time.monotonic() < self._asks_again_at:
            return None
        try:
            return await command()
        except _LOST as error:
            self._asks_again_at = time.monotonic() + _TIMEOUT_S
            self._note_loss(error)
            return None

    async def _send(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._is_closing:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            message = {"from": self._origin, "wake": list(self._wakes), "publish": list(self._messages)}
            self._wakes.clear()
            self._messages.clear()
            try:
                await self._client.publish(self._channel, json.dumps(message))
                delay_s = _FIRST_DELAY_S
            except Exception as error:  # what was sent is lost; the sweeps of the others make up for it
                self._note_loss(error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    async def _listen(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._is_closing:
            try:
                async with self._listening_client.pubsub() as pubsub:
                    await pubsub.subscribe(self._channel)
                    await self._dispatch_messages(pubsub)
            except Exception as error:  # whatever it is, the next connection may do
                self._note_loss(error)
                delay_s = _FIRST_DELAY_S if self._is_listening else min(2 * delay_s, _LONGEST_DELAY_S)
                self._is_listening = False
                self._has_tried.set()
                await asyncio.sleep(delay_s)

    async def _dispatch_messages(self, pubsub: Any) -> None:
        is_pinged = False
        while not self._is_closing:
            message = await pubsub.get_message(timeout=_PING_EVERY_S)
            if message is not None:
                is_pinged = False
                self._dispatch(message)
            elif is_pinged:
                raise TimeoutError("the server has not answered a ping")
            else:
                await pubsub.ping()
                is_pinged = True

    def _dispatch(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._is_listening = True
            self._has_tried.set()
            self._is_loss_logged = False
            _log.info("bus.connected")
            self._local.wake(self._local.local_keys())  # somebody may have called while nobody listened
        elif message["type"] == "message":
            try:
                content = json.loads(message["data"])
                if content["from"] != self._origin:
                    self._local.wake(content["wake"])
                    for topic, payload in content["publish"]:
                        self._local.publish(topic, payload)
            except (ValueError, KeyError, TypeError):
                self.num_failures += 1
                _log.warning("bus.message_unreadable", channel=self._channel)

    def _note_loss(self, error: Exception) -> None:
        self.num_failures += 1
        if not self._is_loss_logged:
            self._is_loss_logged = True
            _log.warning("bus.lost", error=str(error))


def _connect(url: str, num_retries: int) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(
        url,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), num_retries),
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))
