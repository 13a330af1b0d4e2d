"""A way past FastAPI's general machinery for the requests that make up a round: claim, model, update, result.

It leads to the same functions. Whatever is not plainly well-formed takes the general way, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from uuid import UUID

import orjson
from fastapi import Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api import blobs, problems, work
from coordinator.api.auth import Allow
from services.core.digests import is_digest
from services.wire.v1.work import MOST_RESULT_BYTES, RESULT_HEADER, Submission

MOST_BODY_BYTES: Final = 16_384
_CLAIM: Final = "/v1/tasks/claim"
_TASKS, _RESULT, _BLOBS = "/v1/tasks/", "/result", "/v1/blobs/"
_LONGEST_PREFER: Final = 200

Handler = Callable[[Request], Awaitable[Response | None]]
"""None: take the general way."""

_may_work, _may_upload, _may_download = Allow("work"), Allow("upload"), Allow("download")


class HotRoutes:
    """Stands before the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_plain = scope["type"] == "http" and not scope["query_string"]
        found = _handler(scope["method"], scope["path"]) if is_plain else None
        if found is None:
            await self._app(scope, receive, send)
            return
        path, handler = found
        request = Request(scope, receive)
        try:
            response = await handler(request)
        except tuple(problems.ANSWERS) as error:
            response = await problems.answer_to(request, error)
        if response is None:
            await self._app(scope, _replayed(request, receive), send)
        else:
            scope["route"] = _Labelled(path)
            await response(scope, receive, send)


class _Labelled:
    """What the metrics want to know of a route."""

    def __init__(self, path: str) -> None:
        self.path = path


def _handler(method: str, path: str) -> tuple[str, Handler] | None:
    if method == "POST" and path == _CLAIM:
        return _CLAIM, _claim
    if path.startswith(_BLOBS) and is_digest(digest := path[len(_BLOBS) :]):
        if method == "GET":
            return "/v1/blobs/{digest}", partial(_get_blob, digest=digest)
        if method == "PUT":
            return "/v1/blobs/{digest}", partial(_put_blob, digest=digest)
    if method == "PUT" and path.startswith(_TASKS) and path.endswith(_RESULT):
        return "/v1/tasks/{task_id}/result", partial(_submit, task_id=path[len(_TASKS) : -len(_RESULT)])
    return None


async def _claim(request: Request) -> Response | None:
    prefer = request.headers.get("prefer")
    if prefer is not None and len(prefer) > _LONGEST_PREFER:
        return None
    return await work.claim_tasks(request, await _may_work(request), prefer)


async def _get_blob(request: Request, digest: str) -> Response:
    return await blobs.get_blob(request, digest, await _may_download(request))


async def _put_blob(request: Request, digest: str) -> Response | None:
    named = request.headers.get("lethe-task")
    result = request.headers.get(RESULT_HEADER)
    if result is not None and len(result) > MOST_RESULT_BYTES:
        return None
    try:
        task_id = UUID(named) if named is not None else None
    except ValueError:
        return None
    caller = await _may_upload(request)
    return await blobs.put_blob(request, digest, caller, lethe_task=task_id, lethe_result=result)


async def _submit(request: Request, task_id: str) -> Response | None:
    if request.headers.get("content-type") != "application/json":
        return None
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal() or int(announced[:20]) > MOST_BODY_BYTES:
        return None
    caller, content = await _may_work(request), await request.body()
    try:
        task, body = UUID(task_id), Submission.model_validate(orjson.loads(content))
    except ValueError:  # also what orjson and pydantic raise
        return None
    if b"\\u0000" in content:
        return None
    return await work.submit_result(task, body, caller)


def _replayed(request: Request, receive: Receive) -> Receive:
    """The body once more, if it was read."""
    read: bytes | None = getattr(request, "_body", None)
    if read is None:
        return receive
    left: list[Message] = [{"type": "http.request", "body": read, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again
