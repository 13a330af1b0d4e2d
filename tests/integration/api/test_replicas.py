"""Two replicas on one Postgres and one Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.api.site import Actor, Site, code_of, opened, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def replicas(tmp_path: Path, postgres_url: str, redis_url: str) -> AsyncIterator[tuple[Site, Site]]:
    async with (
        opened(tmp_path, postgres_url, redis_url=redis_url) as one,
        opened(tmp_path, postgres_url, redis_url=redis_url, federation="oncology") as other,
    ):
        yield one, other


async def test_a_token_rotated_at_one_replica_is_refused_by_the_other(replicas: tuple[Site, Site]) -> None:
    one, other = replicas
    (a,) = await one.enrol("a")
    there = Actor(other.http, a.token)
    await there.open_session()
    await one.admin.post(f"/v1/clients/{a.client_id}/credentials")

    async def is_refused() -> bool:
        response = await there.call("POST", "/v1/tasks/claim")
        return not response.is_success and code_of(response) == "unauthenticated"

    await until(is_refused, within_s=1.5)  # sooner than the cache forgets by itself


async def test_work_created_at_one_replica_wakes_a_poll_at_the_other(replicas: tuple[Site, Site]) -> None:
    one, other = replicas
    (a,) = await one.enrol("a")
    poll = asyncio.create_task(Actor(other.http, a.token).claim(20))
    await until(lambda: f"client:{a.client_id}" in other.coordinator.bus.local_keys())
    started_at = time.monotonic()
    await one.start_run()
    (task,) = await poll
    assert task["run_name"] == "tiny"
    assert time.monotonic() - started_at < 5


async def test_a_client_seen_by_one_replica_is_online_at_the_other(replicas: tuple[Site, Site]) -> None:
    one, other = replicas
    (a,) = await one.enrol("a")
    await a.open_session()
    assert (await other.admin.get(f"/v1/clients/{a.client_id}"))["online"] is True
