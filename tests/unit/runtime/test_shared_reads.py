"""One reading for all who ask at the same time, and never one that began before they asked."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.runtime.shared_reads import SharedReads

pytestmark = pytest.mark.anyio


class Slow:
    """Reads what is there when it begins, and takes until it is let go."""

    def __init__(self) -> None:
        self.there = 0
        self.num_readings = 0
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def reading(self) -> int:
        self.num_readings += 1
        self.has_begun.set()
        found = self.there
        await self.may_end.wait()
        return found


async def test_all_who_ask_during_a_reading_share_the_next() -> None:
    reads, slow = SharedReads(), Slow()
    first = asyncio.create_task(reads.read("a", slow.reading))
    await slow.has_begun.wait()
    slow.there = 1
    later = [asyncio.create_task(reads.read("a", slow.reading)) for _ in range(10)]
    await asyncio.sleep(0)
    slow.may_end.set()
    assert await first == 0
    assert await asyncio.gather(*later) == [1] * 10, "what was there when they asked is not missed"
    assert slow.num_readings == 2


async def test_who_goes_away_takes_it_from_nobody() -> None:
    reads, slow = SharedReads(), Slow()
    stays, leaves = (asyncio.create_task(reads.read("a", slow.reading)) for _ in range(2))
    await slow.has_begun.wait()
    leaves.cancel()
    slow.may_end.set()
    assert await stays == 0 and slow.num_readings == 1


async def test_a_reading_that_fails_fails_for_those_who_share_it_and_not_for_the_next() -> None:
    reads = SharedReads()

    async def broken() -> int:
        raise OSError("no database")

    found = await asyncio.gather(*(reads.read("a", broken) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [OSError] * 3
    slow = Slow()
    slow.may_end.set()
    assert await reads.read("a", slow.reading) == 0
    assert reads._last == {} and reads._next == {}
