"""One coordinator over HTTP: requests, pages, bytes and streams of events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from lethe.client import http
from lethe.client.answers import Document
from lethe.errors import Refused


class AsyncConnection:
    def __init__(self, url: str, token: str | None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        with http.Opening(url):
            self._http = httpx.AsyncClient(**http.options(self.url, token), transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    def cookie(self, name: str) -> str:
        """What the coordinator had this client keep; empty if there is no such cookie."""
        return self._http.cookies.get(name) or ""

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON of the answer; None of an empty one. Messages and instants in `body` become JSON."""
        with http.Asking(self.url):
            response = await self._http.request(method, path, **http.arguments(query, body, headers))
        return http.document_of(self.url, response)

    async def pages(self, path: str, **query: Any) -> AsyncIterator[Document]:
        """Every item of a list, page after page."""
        cursor: str | None = None
        while True:
            page = await self.request("GET", path, query={**query, "cursor": cursor})
            for item in page["items"]:
                yield item
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    # bytes

    async def head(self, path: str, **query: Any) -> Mapping[str, str]:
        """The headers of what is there."""
        with http.Asking(self.url):
            response = await self._http.request("HEAD", path, **http.arguments(query, None, None))
        if response.is_error:
            raise http.problem_of(self.url, response)
        return response.headers

    async def content(self, path: str, **query: Any) -> bytes:
        with http.Asking(self.url):
            response = await self._http.request("GET", path, **http.arguments(query, None, None))
        if response.is_error:
            raise http.problem_of(self.url, response)
        return response.content

    async def download(self, path: str, out: Path, **query: Any) -> int:
        """Into a file that appears only when complete; returns its size."""
        partial = out.with_name(out.name + ".part")
        with http.Asking(self.url):
            async with self._http.stream("GET", path, **http.arguments(query, None, None)) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise http.problem_of(self.url, response)
                with partial.open("wb") as file:
                    async for piece in response.aiter_bytes(http.PIECE_BYTES):
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
        partial.replace(out)
        return out.stat().st_size

    async def upload(
        self, method: str, path: str, content: Path | bytes, headers: Mapping[str, str], **query: Any
    ) -> Any:
        num_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        request = http.arguments(query, None, {**headers, "Content-Length": str(num_bytes)})
        with http.Asking(self.url):
            response = await self._http.request(method, path, content=_pieces(content), timeout=None, **request)
        return http.document_of(self.url, response)

    # events

    async def events(self, path: str, after: int) -> AsyncIterator[Document]:
        """A journal up to now."""
        accept = {"Accept": "application/json"}
        while True:
            page = await self.request("GET", path, query={"after": after, "limit": 200}, headers=accept)
            for event in page["items"]:
                yield event
            if not page["items"] or page.get("next_cursor") is None:
                return
            after = page["items"][-1]["seq"]

    async def follow(self, path: str, after: int) -> AsyncGenerator[Document | None]:
        """Events as they happen, to the end. None: the connection was lost and is being made again."""
        pauses = http.pauses()
        while True:
            try:
                async with aclosing(self._stream(path, after)) as events:
                    async for event in events:
                        after, pauses = event["seq"], http.pauses()
                        yield event
            except httpx.TransportError:
                pass
            except Refused as problem:
                if problem.status not in http.TRANSIENT:
                    raise
            except http.StreamOver:
                return
            yield None
            await asyncio.sleep(next(pauses))

    async def _stream(self, path: str, after: int) -> AsyncGenerator[Document]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx.Timeout(http.TIMEOUT_S, read=http.SILENCE_S)
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code == 204:
                raise http.StreamOver
            if response.status_code != 200:
                await response.aread()
                raise http.problem_of(self.url, response)
            async for line in response.aiter_lines():
                if (event := http.event_in(line)) is not None:
                    yield event


async def _pieces(content: Path | bytes) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(http.PIECE_BYTES):
            yield piece
