"""Retention gives up only what nobody needs at that instant: whoever begins to need an update waits for it, or is
waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Job
from coordinator.store import kept_updates, retention
from coordinator.store import tables as t
from services.history.spec import UpdateHistory
from services.history.store import Kept
from tests.integration.api.site import until
from tests.integration.test_deleting_and_naming import ended_or_waits
from tests.support.federation import Federation, federation

pytestmark = pytest.mark.anyio
KEPT_AS_THEY_ARE = UpdateHistory(dtype="fp32", compression="none", interval=1)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


async def trained(f: Federation, **changes: Any) -> UUID:
    """The cohort of a run that has kept all its updates so far."""
    f.work()
    run_id = await f.create_run(stop={"rounds": 2}, retention={"updates": "all"}, **changes)
    assert (await f.wait_for_run(run_id)).status == "completed"
    is_open = t.jobs.c.run_id.is_not(None) & t.jobs.c.status.in_(("ready", "leased"))

    async def is_idle() -> bool:
        return not await f.rows(t.jobs, is_open)

    await until(is_idle)
    (cohort,) = await f.rows(t.cohorts, t.cohorts.c.run_id == run_id)
    return cohort.id  # type: ignore[no-any-return]


def retention_of(f: Federation, cohort_id: UUID) -> Awaitable[None]:
    """As the chore of a run that keeps nothing."""
    job = Job(uuid4(), None, cohort_id, f.id, 0, "collect-updates", None, {"up_to_round": 9}, [], "leased", now())
    return f.coordinator.kept_updates.collect(job, "token")


def now() -> datetime:
    return datetime.now(UTC)


async def num_stored(f: Federation, cohort_id: UUID) -> tuple[int, int]:
    """Updates that are said to be stored, and blobs of updates that are."""
    updates = await f.rows(
        t.updates, t.updates.c.cohort_id == cohort_id, t.updates.c.stored, t.updates.c.kind == "train"
    )
    of_tasks = (t.blobs.c.cohort_id == cohort_id) & (t.blobs.c.origin == "task") & (t.blobs.c.status == "stored")
    return len(updates), len(await f.rows(t.blobs, of_tasks))


async def test_an_update_that_the_history_keeps_meanwhile_stays(tmp_path: Path, url: str | None) -> None:
    async with federation(tmp_path, "a", "b", url=url) as f:
        cohort_id = await trained(f)
        assert await num_stored(f, cohort_id) == (4, 4)
        async with f.coordinator.database.read() as connection:
            wanted = await kept_updates.wanted(connection, cohort_id, KEPT_AS_THEY_ARE)
        assert len(wanted) == 4
        outside = copy_context()
        async with f.coordinator.database.write() as connection:
            copies = [(one, Kept(one.source, 10)) for one in wanted]
            await kept_updates.announce(connection, copies, KEPT_AS_THEY_ARE, now())
            collecting = asyncio.create_task(_run(retention_of(f, cohort_id)), context=outside)
            await ended_or_waits(f, collecting)
        await collecting
        assert await num_stored(f, cohort_id) == (4, 4)


async def _run(work: Awaitable[Any]) -> None:
    await work


@pytest.mark.parametrize("chore", ["retention", "thinning"])
async def test_a_fence_waits_while_updates_of_its_cohort_are_given_up(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch, chore: str
) -> None:
    """Its method names the updates that it walks through: either it finds them given up, or they stay."""
    async with federation(tmp_path, "a", "b", url=url) as f:
        cohort_id = await trained(
            f, history={"updates": {"compression": "none", "window": 9}} if chore == "thinning" else {}
        )
        began, outside = list[asyncio.Task[None]](), copy_context()

        async def lock_as_a_fence_does() -> None:
            async with f.coordinator.database.write() as connection:
                own = sa.select(t.cohorts.c.id).where(t.cohorts.c.id == cohort_id)
                await connection.execute(own.with_for_update())

        def after(look: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def looked(connection: AsyncConnection, *given: Any) -> Any:
                found = await look(connection, *given)
                began.append(asyncio.create_task(lock_as_a_fence_does(), context=outside))
                await ended_or_waits(f, began[0])
                assert not began[0].done(), "a fence went by between the look and what is given up"
                return found

            return looked

        if chore == "retention":
            monkeypatch.setattr(retention, "updates_to_collect", after(retention.updates_to_collect))
            await retention_of(f, cohort_id)
            assert await num_stored(f, cohort_id) == (0, 0)
        else:
            monkeypatch.setattr(kept_updates, "is_being_erased", after(kept_updates.is_being_erased))
            await f.coordinator.kept_updates.thin([cohort_id])
        await began[0]
