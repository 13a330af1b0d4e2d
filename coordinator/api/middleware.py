"""Around every request: measure it, keep it waiting until the coordinator is ready, turn a bug into a 500.

Plain ASGI, so that bodies pass through untouched.
"""

from __future__ import annotations

import time
from typing import Any

import structlog
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api.context import Context
from coordinator.api.problems import answer_to_bug, problem

log = structlog.get_logger()


class RequestMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context: Context = scope["app"].state.context
        counted = _Counted(receive, send)
        started_at = time.perf_counter()
        try:
            if (refused := _refused(context)) is not None and scope["path"].startswith("/v1/"):
                await problem(Request(scope), *refused)(scope, receive, counted.send)
            else:
                await self._app(scope, counted.receive, counted.send)
        except Exception as error:
            log.error("request.broke", method=scope["method"], path=scope["path"], exc_info=error)
            if counted.status is None:
                answer = await answer_to_bug(Request(scope), error)
                await answer(scope, receive, counted.send)
            elif not counted.is_complete:
                raise  # too late for another answer: the server cuts the connection
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            elapsed_s = time.perf_counter() - started_at
            context.metrics.answered(route, counted.status or 0, elapsed_s, counted.bytes_in, counted.bytes_out)


def _refused(context: Context) -> tuple[str, str] | None:
    """(code, detail) of the answer to everything while nothing can be served."""
    if context.unready_because is not None:
        return "unavailable", context.unready_because
    if (fault := context.coordinator.database.gate.fault) is not None:
        return "not-ready", fault
    return None


class _Counted:
    """An ASGI channel that knows what went through it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.status: int | None = None
        self.is_complete = False
        self.bytes_in = 0
        self.bytes_out = 0

    async def receive(self) -> Message:
        message = await self._receive()
        body: Any = message.get("body")
        if body:
            self.bytes_in += len(body)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.bytes_out += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
        await self._send(message)
