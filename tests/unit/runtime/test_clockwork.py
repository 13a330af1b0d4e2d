"""What the clockwork looks for, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from coordinator.engine.react import client_key
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
