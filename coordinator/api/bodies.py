"""JSON in and out: bodies of JSON only, bounded before they are read; answers written once, not validated again."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

import orjson
from fastapi import Depends, Header, HTTPException, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from coordinator.api.auth import identified, peer_of
from coordinator.api.context import context_of
from coordinator.store.paging import Position
from services.core.errors import Rejected
from services.wire.v1.resources import Page

MOST_JSON_BYTES: Final = 1 << 20
SMALL_JSON_BYTES: Final = 16_384
STRANGERS_JSON_BYTES: Final = 2_048
MOST_JSON_DEPTH: Final = 32
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
Item = TypeVar("Item")
IfMatch = Annotated[
    str | None, Header(max_length=200, description="Act only if it still has this ETag.", examples=['"3"'])
]
_ETAG = re.compile(r'"(\d{1,9})"')


class JsonRequest(Request):
    """FastAPI reads bodies through this."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            announced = self.headers.get("content-length", "0")
            if not announced.isdecimal() or int(announced[:20]) > MOST_JSON_BYTES:
                raise _too_large()
            data = bytearray()
            async for chunk in self.stream():
                data += chunk
                if len(data) > MOST_JSON_BYTES:
                    raise _too_large()
            media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            if data and media_type != "application/json":
                raise HTTPException(415, "this address takes application/json")
            self._body = bytes(data)
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        value = orjson.loads(body)
        if body.count(b"[") + body.count(b"{") > MOST_JSON_DEPTH and _is_deeper(value, MOST_JSON_DEPTH):
            raise HTTPException(422, f"JSON may be nested {MOST_JSON_DEPTH} deep here")
        return _without_nul(value) if b"\\u0000" in body else value


class JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            wanted = JsonRequest(request.scope, request.receive)
            if request.method in _WITH_BODY:
                await _receive(wanted)
            return await handle(wanted)

        return handle_json


class StrangersRoute(APIRoute):
    """For whoever has no credential: a short body of announced length, and nobody may fail here often."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_stranger(request: Request) -> Response:
            limits, peer = context_of(request).limits, peer_of(request)
            limits.admit_stranger(peer)
            announced = request.headers.get("content-length", "0")
            is_short = announced.isdecimal() and int(announced[:20]) <= STRANGERS_JSON_BYTES
            if not is_short or "transfer-encoding" in request.headers:
                raise HTTPException(413, f"a body may have {STRANGERS_JSON_BYTES} bytes here, and says how many it has")
            try:
                return await handle(JsonRequest(request.scope, request.receive))
            except Rejected:
                limits.count_failure(peer)
                raise

        return handle_stranger


async def _receive(request: JsonRequest) -> None:
    """Nobody's body is held in memory but that of somebody known, and of each only a few large ones."""
    context = context_of(request)
    principal = await identified(request, context)
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) <= SMALL_JSON_BYTES and "transfer-encoding" not in request.headers:
        return
    with context.limits.uploading(principal.name, principal.federation_id or principal.credential_id):
        await request.body()


def _too_large() -> HTTPException:
    return HTTPException(413, f"a JSON body may have {MOST_JSON_BYTES} bytes")


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than `most` deep. Level by level: what is deep must not recurse."""
    level = [value]
    for _ in range(most + 1):
        level = [
            item
            for one in level
            if isinstance(one, list | dict)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return any(isinstance(one, list | dict) for one in level)


def _without_nul(value: Any) -> Any:
    """PostgreSQL stores no NUL in text; a log tail may well contain one."""
    if isinstance(value, str):
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value


def answer(document: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(document.model_dump_json(), status, headers=headers, media_type="application/json")


def expected_version(if_match: str | None) -> int | None:
    """The version that an If-Match header insists on."""
    if if_match is None or if_match.strip() == "*":
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise Rejected("precondition-failed", "If-Match must be the one ETag that a GET of the same resource gave")
    return int(match[1])


async def _wanted_page(
    cursor: Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Position:
    return Position(limit, cursor)


WantedPage = Annotated[Position, Depends(_wanted_page)]
"""The page that a request asks for."""


def answer_page(request: Request, page: Page[Item]) -> Response:
    headers = {}
    if page.next_cursor is not None:
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
        query = [*kept, ("cursor", page.next_cursor)]
        headers["Link"] = f'<{request.url.path}?{urlencode(query)}>; rel="next"'
    return answer(page, headers=headers)
