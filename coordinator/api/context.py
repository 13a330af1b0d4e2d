"""What every request can reach: the coordinator, and the API's own parts. One per app."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastapi import Request

if TYPE_CHECKING:
    from coordinator.api.auth import Keyring
    from coordinator.api.lookout import Lookout
    from coordinator.api.metrics import Metrics
    from coordinator.runtime.coordinator import Coordinator

MOST_BODIES: Final = 32
"""Uploads received at the same time; more of them wait, so that memory does not grow with the number of clients."""


@dataclass(slots=True)
class Context:
    coordinator: Coordinator
    keyring: Keyring
    lookout: Lookout
    metrics: Metrics
    bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_BODIES))
    readings: dict[str, asyncio.Task[bytes]] = field(default_factory=dict)
    """Small blobs that are being read, by their place in the cache."""
    unready_because: str | None = "the coordinator is starting"


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context
