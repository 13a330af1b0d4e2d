"""A moment for those who come together, so that they share one transaction, one trip to the disk, one query."""

from __future__ import annotations

import asyncio
from typing import Final

_TURNS: Final = 3
"""Turns of the event loop: to read what has arrived, to begin its task, to come as far as that task goes."""


async def yield_to_loop() -> None:
    """Wait until the requests that have arrived by now have come as far as they can."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
