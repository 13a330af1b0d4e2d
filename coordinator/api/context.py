"""What every request can reach: the coordinator, and the API's own parts. One per app."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from fastapi import Request

if TYPE_CHECKING:
    from coordinator.api.auth import Authenticator
    from coordinator.api.claim_probe import ClaimProbe
    from coordinator.api.limits import Limits
    from coordinator.api.metrics import Metrics
    from coordinator.runtime.coordinator import Coordinator


@dataclass(slots=True)
class Context:
    coordinator: Coordinator
    authenticator: Authenticator
    claim_probe: ClaimProbe
    metrics: Metrics
    limits: Limits
    readings: dict[UUID, asyncio.Task[bytes]] = field(default_factory=dict)
    """Small blobs that are being read, by their place in the cache."""
    unready_because: str | None = "the coordinator is starting"


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context
