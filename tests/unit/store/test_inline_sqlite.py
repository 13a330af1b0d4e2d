"""The inline SQLite driver under cancellation."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.store.inline_sqlite import InlineCursor, connect

pytestmark = pytest.mark.anyio


class SlowCursor:
    def __init__(self) -> None:
        self.may_end, self.has_ended = threading.Event(), False

    def execute(self, sql: str, parameters: Any = ()) -> None:
        self.may_end.wait(5)
        self.has_ended = True


async def test_a_cancelled_commit_is_waited_for() -> None:
    slow = SlowCursor()
    committing = asyncio.create_task(InlineCursor(slow).execute("COMMIT"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    committing.cancel()
    asyncio.get_running_loop().call_later(0.05, slow.may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert slow.has_ended


async def test_what_was_committed_is_there_for_the_next_connection(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    first = await connect(path)
    for statement in ("CREATE TABLE t (x)", "BEGIN IMMEDIATE", "INSERT INTO t VALUES (7)", "COMMIT"):
        await first.cursor().execute(statement)
    await first.close()
    second = await connect(path)
    assert await (await second.cursor().execute("SELECT x FROM t")).fetchall() == [(7,)]
    await second.close()
