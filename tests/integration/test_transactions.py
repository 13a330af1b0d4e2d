"""The watch over transactions sees what it must; that nothing does what it must not is seen by every other test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.federation import federation
from tests.support.transactions import NotARow

pytestmark = pytest.mark.anyio


async def test_bytes_keys_and_tombstones_inside_a_transaction_are_noticed(tmp_path: Path) -> None:
    async with federation(tmp_path, "c0") as f:
        await f.coordinator.blobs.probe()
        async with f.coordinator.database.write():
            with pytest.raises(NotARow):
                await f.coordinator.blobs.probe()
            with pytest.raises(NotARow):
                f.coordinator.sealer.keys.names()
            with pytest.raises(NotARow):
                f.coordinator.tombstones.entries()
        f.coordinator.sealer.keys.names()
