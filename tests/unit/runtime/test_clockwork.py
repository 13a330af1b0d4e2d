"""What the clockwork looks for, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from coordinator.engine.react import client_key
from coordinator.runtime import clockwork
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import due, schema

pytestmark = pytest.mark.anyio


async def test_clients_who_wait_are_not_looked_for_at_every_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree rings once for each of its cohorts."""
    looked_for = list[Sequence[UUID]]()

    async def claimable(connection: Any, client_ids: Sequence[UUID], *more: Any) -> list[UUID]:
        looked_for.append(client_ids)
        return []

    monkeypatch.setattr(due, "claimable_clients", claimable)
    monkeypatch.setattr("coordinator.runtime.clockwork.TICK_S", 3600.0)
    coordinator = Coordinator(Settings(home=tmp_path))
    try:
        await schema.upgrade(coordinator.database)
        client_id = uuid4()
        with coordinator.bus.waiter(client_key(client_id)):
            for _ in range(5):
                await coordinator.clockwork.tick()
    finally:
        await coordinator.close()
    assert looked_for == [[client_id]]


async def test_requests_in_large_runs_rest_before_each_review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A review looks at every cohort of the run, and holds up the kernels that make its clean models."""
    small, large = uuid4(), uuid4()
    reviewed = list[UUID]()

    async def under_way(connection: Any) -> dict[UUID, int]:
        return {small: clockwork.MANY_COHORTS, large: 1000}

    async def handle(message: Any) -> None:
        reviewed.append(message.erasure_id)

    monkeypatch.setattr(due, "erasures_under_way", under_way)
    monkeypatch.setattr(clockwork, "REVIEW_REST_S", 0.0002)
    coordinator = Coordinator(Settings(home=tmp_path))
    monkeypatch.setattr(coordinator.shell, "handle", handle)
    try:
        await schema.upgrade(coordinator.database)
        for _ in range(2):
            await coordinator.clockwork.tick(lets_rest=True)
        assert reviewed == [small, small]
        for _ in range(2):
            reviewed.clear()
            await asyncio.sleep(0.21)
            await coordinator.clockwork.tick(lets_rest=True)
            await coordinator.clockwork.tick(lets_rest=True)
            assert reviewed == [small, large, small]
        reviewed.clear()
        await coordinator.clockwork.tick()
        assert reviewed == [small, large], "who has a clock of its own asks when it wants"
    finally:
        await coordinator.close()
