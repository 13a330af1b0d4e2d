"""One contract for every bus: in process, and over a real Valkey that is flushed, stopped and frozen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import redis

from coordinator.bus.local import LocalBus
from coordinator.bus.port import Bus
from coordinator.bus.redis import RedisBus
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

SOON_S = 10.0


@pytest.fixture(params=["local", "redis"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    bus: Bus = LocalBus() if request.param == "local" else RedisBus(request.getfixturevalue("redis_url"))
    await bus.start()
    yield bus
    await bus.close()


@pytest.fixture
async def replicas(redis_url: str) -> AsyncIterator[tuple[RedisBus, RedisBus]]:
    """Two replicas that hear each other."""
    pair = RedisBus(redis_url), RedisBus(redis_url)
    for bus in pair:
        await bus.start()
    await until(lambda: reaches(*pair))
    await until(lambda: reaches(*reversed(pair)))
    yield pair
    for bus in pair:
        await bus.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await condition():
            pass


async def reaches(sender: Bus, receiver: Bus) -> bool:
    heard = asyncio.Event()
    end = receiver.subscribe("are-you-there", lambda _: heard.set())
    sender.publish("are-you-there", "")
    try:
        async with asyncio.timeout(0.1):
            await heard.wait()
    except TimeoutError:
        return False
    finally:
        end()
    return True


async def quiet(waiter: Awaitable[bool]) -> bool:
    return not await waiter


async def test_a_wake_up_between_reading_and_waiting_is_not_lost(bus: Bus) -> None:
    with bus.waiter("client-1") as waiter:
        bus.wake(["client-1"])
        assert await waiter.wait(SOON_S)


async def test_a_waiter_that_waits_is_woken(bus: Bus) -> None:
    waiting = asyncio.create_task(bus.wait("client-1", SOON_S))
    await asyncio.sleep(0)
    bus.wake(["other", "client-1"])
    assert await waiting


async def test_a_waiter_can_wait_again_and_one_wake_up_counts_once(bus: Bus) -> None:
    with bus.waiter("client-1") as waiter:
        bus.wake(["client-1"])
        bus.wake(["client-1"])
        assert await waiter.wait(SOON_S)
        assert not await waiter.wait(0.01)
        bus.wake(["client-1"])
        assert await waiter.wait(SOON_S)


async def test_nobody_calls_and_the_wait_ends_in_time(bus: Bus) -> None:
    assert not await bus.wait("client-1", 0.02)
    assert not await bus.wait("client-1", 0)


async def test_only_those_who_wait_for_the_key_are_woken(bus: Bus) -> None:
    with bus.waiter("client-1") as called, bus.waiter("client-2") as not_called:
        bus.wake(["client-1", "client-3"])
        assert await called.wait(SOON_S)
        assert not await not_called.wait(0.01)


async def test_thousands_of_waiters_are_all_woken(bus: Bus) -> None:
    waiting = [asyncio.create_task(bus.wait(f"client-{number}", SOON_S)) for number in range(3000)]
    await asyncio.sleep(0)
    bus.wake([f"client-{number}" for number in range(3000)])
    assert all(await asyncio.gather(*waiting))


async def test_keys_are_known_while_somebody_waits_for_them(bus: Bus) -> None:
    with bus.waiter("a"), bus.waiter("a"), bus.waiter("b"):
        assert bus.local_keys() == {"a", "b"}
    assert bus.local_keys() == set()


async def test_a_cancelled_wait_leaves_nothing_behind(bus: Bus) -> None:
    waiting = asyncio.create_task(bus.wait("client-1", SOON_S))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert bus.local_keys() == set()


async def test_every_subscriber_of_the_topic_gets_the_message_once(bus: Bus) -> None:
    heard: list[str] = []
    bus.subscribe("run-1", lambda payload: heard.append(f"first {payload}"))
    end_second = bus.subscribe("run-1", lambda payload: heard.append(f"second {payload}"))
    bus.subscribe("run-2", lambda payload: heard.append(f"stranger {payload}"))
    bus.publish("run-1", "hello")
    await asyncio.sleep(0.05)
    end_second()
    end_second()
    bus.publish("run-1", "bye")
    await asyncio.sleep(0.05)
    assert heard == ["first hello", "second hello", "first bye"]


async def test_a_client_is_alive_until_its_time_is_over(bus: Bus) -> None:
    await bus.mark_alive("client-1", 30)
    await bus.mark_alive("client-2", 0.02)
    await asyncio.sleep(0.05)
    assert await bus.alive(["client-1", "client-2", "client-3"]) == {"client-1"}
    assert await bus.alive([]) == set()


async def test_the_cache_returns_what_was_set_until_dropped(bus: Bus) -> None:
    assert await bus.cache_get("key") is None
    await bus.cache_set("key", b"one", 30)
    await bus.cache_set("key", b"\x00\xff", 30)
    assert await bus.cache_get("key") == b"\x00\xff"
    await bus.cache_drop("key")
    await bus.cache_drop("key", "another")
    await bus.cache_drop()
    assert await bus.cache_get("key") is None


async def test_a_cached_value_is_not_trusted_beyond_its_time(bus: Bus) -> None:
    await bus.cache_set("key", b"old", 0.02)
    await asyncio.sleep(0.05)
    assert await bus.cache_get("key") is None


async def test_the_local_cache_forgets_the_least_recently_used_first() -> None:
    bus = LocalBus()
    for number in range(64):
        await bus.cache_set(f"key-{number}", bytes(2**20), 30)
    await bus.cache_get("key-0")
    await bus.cache_set("one-more", bytes(2**20), 30)
    assert await bus.cache_get("key-0") is not None
    assert await bus.cache_get("key-1") is None


# Across replicas


async def test_a_waiter_on_another_replica_is_woken(replicas: tuple[RedisBus, RedisBus]) -> None:
    here, there = replicas
    with there.waiter("client-1") as waiter:
        here.wake(["client-1"])
        assert await waiter.wait(SOON_S)


async def test_one_call_is_one_message(replicas: tuple[RedisBus, RedisBus], redis_url: str) -> None:
    here, there = replicas
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("lethe:bus")
        listener.get_message(timeout=1)
        with there.waiter("client-999") as waiter:
            here.wake(f"client-{number}" for number in range(1000))
            assert await waiter.wait(SOON_S)
        messages = [message for _ in range(5) if (message := listener.get_message(timeout=0.05)) is not None]
    assert len(messages) == 1


async def test_a_message_reaches_subscribers_on_another_replica_once(replicas: tuple[RedisBus, RedisBus]) -> None:
    here, there = replicas
    heard: list[str] = []
    here.subscribe("run-1", lambda payload: heard.append(f"here {payload}"))
    there.subscribe("run-1", lambda payload: heard.append(f"there {payload}"))
    here.publish("run-1", "hello")
    await asyncio.sleep(0.1)
    assert sorted(heard) == ["here hello", "there hello"]


async def test_liveness_and_cache_are_shared(replicas: tuple[RedisBus, RedisBus]) -> None:
    here, there = replicas
    await here.mark_alive("client-1", 30)
    await here.cache_set("key", b"value", 30)
    assert await there.alive(["client-1"]) == {"client-1"}
    assert await there.cache_get("key") == b"value"


async def test_a_foreign_message_on_the_channel_is_counted_and_ignored(
    replicas: tuple[RedisBus, RedisBus], redis_url: str
) -> None:
    here, there = replicas
    before = there.num_failures
    with redis.Redis.from_url(redis_url) as client:
        client.publish("lethe:bus", b"\xff not ours")
        client.publish("lethe:bus", b"[1, 2]")
    assert await reaches(here, there)
    assert there.num_failures == before + 2


async def test_a_flush_in_the_middle_is_harmless(
    replicas: tuple[RedisBus, RedisBus], redis_server: RedisServer
) -> None:
    here, there = replicas
    await here.mark_alive("client-1", 30)
    await here.cache_set("key", b"value", 30)
    with there.waiter("client-1") as waiter:
        await asyncio.to_thread(redis_server.flush)
        here.wake(["client-1"])
        assert await waiter.wait(SOON_S)
    assert await here.alive(["client-1"]) == {"client-1"}
    assert await here.cache_get("key") is None


async def test_without_the_server_each_replica_still_serves_itself(
    replicas: tuple[RedisBus, RedisBus], redis_server: RedisServer
) -> None:
    if redis_server.is_outside:
        pytest.skip("the server is not ours to stop")
    here, _ = replicas
    await asyncio.to_thread(redis_server.stop)
    with here.waiter("client-1") as waiter:
        here.wake(["client-1"])
        assert await waiter.wait(SOON_S)
    here.publish("run-1", "hello")
    await here.mark_alive("client-1", 30)
    assert await here.alive(["client-1"]) == {"client-1"}
    await here.cache_set("key", b"value", 30)
    assert await here.cache_get("key") is None
    await here.cache_drop("key")
    assert here.num_failures > 0


async def test_replicas_find_each_other_again_after_a_restart(
    replicas: tuple[RedisBus, RedisBus], redis_server: RedisServer
) -> None:
    if redis_server.is_outside:
        pytest.skip("the server is not ours to stop")
    here, there = replicas
    with there.waiter("client-1") as waiter:
        await asyncio.to_thread(redis_server.stop)
        here.wake(["client-1"])  # nobody there can hear this
        assert not await waiter.wait(0.05)
        await asyncio.to_thread(redis_server.start)
        assert await waiter.wait(SOON_S), "whoever may have missed a wake-up looks again on reconnection"
    await until(lambda: reaches(here, there))
    await until(lambda: reaches(there, here))


async def test_a_server_that_answers_nobody_costs_one_time_out_and_not_one_per_call(
    replicas: tuple[RedisBus, RedisBus], redis_server: RedisServer
) -> None:
    if redis_server.is_outside:
        pytest.skip("the server is not ours to freeze")
    here, _ = replicas
    redis_server.pause()
    try:
        started = time.monotonic()
        for _ in range(50):
            assert await here.cache_get("key") is None
        assert time.monotonic() - started < 5
    finally:
        redis_server.resume()


async def test_a_bus_starts_without_its_server(redis_server: RedisServer, redis_url: str) -> None:
    if redis_server.is_outside:
        pytest.skip("the server is not ours to stop")
    await asyncio.to_thread(redis_server.stop)
    late, other = RedisBus(redis_url), RedisBus(redis_url)
    await late.start()
    await other.start()
    await asyncio.to_thread(redis_server.start)
    await until(lambda: reaches(late, other))
    await late.close()
    await other.close()
