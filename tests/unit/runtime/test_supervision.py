"""Background work that dies comes back, and says so while it is down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coordinator.runtime.supervision import HOPELESS_AFTER, Supervisor, WorkHealth

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - any change
            await asyncio.sleep(0)


async def test_work_that_dies_is_started_again() -> None:
    supervisor, lives = Supervisor(first_pause_s=0), list[int]()

    async def work(health: WorkHealth) -> None:
        lives.append(len(lives))
        if len(lives) < 3:
            raise KeyError("a bug")
        health.ok()
        await asyncio.Event().wait()

    supervisor.start("clockwork", work)
    await until(lambda: len(lives) == 3)
    assert supervisor.health["clockwork"].num_restarts == 2
    assert supervisor.down() == {}
    await supervisor.close()


async def test_work_that_is_down_is_named_with_its_cause_until_a_turn_goes_well() -> None:
    supervisor, may_work = Supervisor(first_pause_s=0), asyncio.Event()

    async def work(health: WorkHealth) -> None:
        if supervisor.health["clockwork"].num_restarts == 0:
            raise KeyError("the secret inside")
        await may_work.wait()
        health.ok()
        await asyncio.Event().wait()

    supervisor.start("clockwork", work)
    await until(lambda: supervisor.health["clockwork"].num_restarts == 1)
    assert supervisor.down() == {"clockwork": "it died of KeyError; it is started again"}
    may_work.set()
    await until(lambda: not supervisor.down())
    await supervisor.close()


@pytest.mark.parametrize("error", [None, asyncio.CancelledError()])
async def test_work_that_ends_without_an_error_or_is_cancelled_by_others_has_died(
    error: BaseException | None,
) -> None:
    supervisor, lives = Supervisor(first_pause_s=0), list[int]()

    async def work(health: WorkHealth) -> None:
        lives.append(len(lives))
        if error is not None:
            raise error

    supervisor.start("chores", work)
    await until(lambda: len(lives) >= 3)
    assert "chores" in supervisor.down()
    await supervisor.close()


async def test_closing_ends_all_work_once_and_leaves_no_task() -> None:
    supervisor, ended = Supervisor(), list[str]()

    async def work(health: WorkHealth) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    supervisor.start("one", work)
    supervisor.start("other", work)
    await asyncio.sleep(0)
    await supervisor.close()
    assert ended == ["work", "work"]
    assert not {"one", "other"} & {task.get_name() for task in asyncio.all_tasks()}


async def test_work_that_dies_again_and_again_is_reported_as_hopeless() -> None:
    supervisor, reported = Supervisor(first_pause_s=0), list[str]()

    async def work(health: WorkHealth) -> None:
        raise KeyError("a bug")

    supervisor.when_hopeless(reported.append)
    supervisor.start("kernels", work)
    await until(lambda: bool(reported))
    assert reported == [f"kernels died {HOPELESS_AFTER} times in a row: it died of KeyError"]
    await supervisor.close()


async def test_work_that_waits_for_something_is_down_and_not_restarted() -> None:
    supervisor = Supervisor()

    async def work(health: WorkHealth) -> None:
        health.waits("the database cannot serve")
        await asyncio.Event().wait()

    supervisor.start("clockwork", work)
    await until(lambda: bool(supervisor.down()))
    assert supervisor.down() == {"clockwork": "the database cannot serve"}
    assert supervisor.health["clockwork"].num_restarts == 0
    await supervisor.close()
