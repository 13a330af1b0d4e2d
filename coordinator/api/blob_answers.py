"""Bytes of a blob as an HTTP answer: ETag, If-None-Match, Range. Never more than a piece of it in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from coordinator.api.context import Context
from coordinator.engine.entities import Blob
from coordinator.runtime.storage import SMALL_BYTES
from services.core.errors import Rejected

MEDIA_TYPE: Final = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def send_blob(request: Request, context: Context, blob: Blob) -> Response:
    etag, num_bytes = f'"{blob.digest}"', blob.num_bytes
    headers = {"ETag": etag, "Cache-Control": "private, immutable", "Accept-Ranges": "bytes"}
    if etag in request.headers.get("if-none-match", "") or request.headers.get("if-none-match") == "*":
        return Response(status_code=304, headers=headers)
    wanted = None
    if request.headers.get("if-range", etag) == etag:
        wanted = wanted_range(request.headers.get("range", ""), num_bytes)
    start, end = wanted or (0, num_bytes)
    headers["Content-Length"] = str(end - start)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{num_bytes}"
    status = 200 if wanted is None else 206
    if num_bytes <= SMALL_BYTES:
        data = await _small_blob(context, blob)
        return Response(data[start:end], status, headers=headers, media_type=MEDIA_TYPE)
    pieces = context.coordinator.storage.pieces(blob, start, end)
    first = await anext(aiter(pieces))  # a blob that is missing after all is a 404, not a broken answer
    return StreamingResponse(_chained(first, pieces), status, headers=headers, media_type=MEDIA_TYPE)


def wanted_range(header: str, num_bytes: int) -> tuple[int, int] | None:
    """[start, end) of a request for one range; None when there is none that we serve, so that all is sent."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, num_bytes - int(last)), num_bytes
    else:
        start, end = int(first), min(num_bytes, int(last) + 1) if last else num_bytes
        if last and int(last) < start:
            return None
    if start >= end:
        raise Rejected("range-not-satisfiable", f"the blob has {num_bytes} bytes", num_bytes=num_bytes)
    return start, end


async def _small_blob(context: Context, blob: Blob) -> bytes:
    """A small blob's bytes. Requests for it at the same moment wait for one reading."""
    reading = context.readings.get(blob.id)
    if reading is None:
        reading = context.readings[blob.id] = asyncio.create_task(context.coordinator.storage.whole(blob))
        reading.add_done_callback(lambda _: context.readings.pop(blob.id))
    return await asyncio.shield(reading)


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
