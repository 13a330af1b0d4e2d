"""How a federation's clients would be divided if a period began now, without beginning one."""

from __future__ import annotations

import os

from coordinator.engine.decide import decide
from coordinator.engine.entities import Period
from coordinator.engine.messages import ChangeAllocation, Envelope
from coordinator.store.database import Database
from coordinator.store.slices import load


async def next_period(database: Database, change: ChangeAllocation) -> Period:
    """Decided on a slice of the database that is thrown away, as erasures are previewed."""
    async with database.read() as connection:  # its locks go with it: nothing on it is kept
        now = await database.now(connection)
        state = await load(connection, [change])
    decided = decide(state, Envelope(change, now, os.urandom(16))).state
    return max(decided.periods.values(), key=lambda period: period.number)
