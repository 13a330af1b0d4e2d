"""The HTTP server around the app: uvicorn, with connections that have limits of their own."""

from __future__ import annotations

import functools
import time
from typing import Any, Final

import structlog
import uvicorn
from fastapi import FastAPI

from coordinator.api.connection import Connection, OpenConnections
from coordinator.runtime.settings import Settings

log = structlog.get_logger()
DRAIN_S: Final = 5
"""How long open requests may take to finish after SIGTERM."""
_LOOK_EVERY_S: Final = 1.0


class Server(uvicorn.Server):
    """Looks after its connections."""

    def __init__(self, app: FastAPI, settings: Settings, **options: Any) -> None:
        rejections = app.state.context.metrics.rejections

        def refused(code: str) -> None:
            rejections.labels(code).inc()
            log.info("connection.refused", code=code)

        proxies = [str(network) for network in settings.proxies]
        config = uvicorn.Config(
            app,
            http=functools.partial(Connection, connections=OpenConnections(settings, refused)),  # type: ignore[arg-type]  # it makes one
            ws="none",
            timeout_keep_alive=max(1, round(settings.keep_alive_s)),
            timeout_graceful_shutdown=DRAIN_S,
            access_log=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            log_config=None,
            **options,
        )
        super().__init__(config)
        self._look_every_s = min(
            _LOOK_EVERY_S, settings.header_timeout_s / 5, settings.body_timeout_s / 5, settings.keep_alive_s / 5
        )
        self._looked_at = time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        if (elapsed_s := now - self._looked_at) >= self._look_every_s:
            self._looked_at = now
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, Connection):
                    # While this process stood still nobody was slow but itself: a time-out takes several looks.
                    connection.look(min(elapsed_s, 2 * self._look_every_s))
        return await super().on_tick(counter)
