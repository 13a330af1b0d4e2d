"""A small HTTP/1.1 client on raw sockets, so that the load side costs little beside the server that it measures.

One connection, one request at a time. Bodies to send are given as pieces that are never copied; a body of more than
`KEEP_BYTES` that is received is counted and thrown away through one buffer shared by all connections of the process.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

KEEP_BYTES: Final = 64 << 10
_discarded: Final = bytearray(1 << 20)


class AnswerUnusable(Exception):
    """The server said something that this client does not understand, or hung up."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    num_bytes: int
    body: bytes
    """Empty when it was too large to keep."""

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """Keep-alive; opened on first use and again after the server closed it. Counts every byte on the wire."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        self._address = (host, port)
        self._fixed = f"Host: {host}:{port}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._socket: socket.socket | None = None
        self.num_sent = 0
        self.num_received = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        body: Sequence[bytes | memoryview] = (),
    ) -> Answer:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        length = sum(map(len, body))
        if method != "GET":
            lines += f"Content-Length: {length}\r\n"
        head = f"{method} {path} HTTP/1.1\r\n{self._fixed}{lines}\r\n".encode()
        is_small = length <= KEEP_BYTES
        body = (b"".join((head, *body)),) if is_small else (head, *body)
        was_open = self._socket is not None
        try:
            return await self._exchange(body)
        except (ConnectionError, _ClosedWhileIdle):
            self.close()
            if not was_open:
                raise
        return await self._exchange(body)

    async def json(
        self, method: str, path: str, message: Any = None, *, headers: Sequence[tuple[str, str]] = ()
    ) -> Answer:
        if message is None:
            return await self.request(method, path, headers=headers)
        typed = (*headers, ("Content-Type", "application/json"))
        return await self.request(method, path, headers=typed, body=(json.dumps(message).encode(),))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _exchange(self, pieces: Sequence[bytes | memoryview]) -> Answer:
        loop = asyncio.get_running_loop()
        if self._socket is None:
            self._socket = socket.socket()
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(self._socket, self._address)
        try:
            num_sent = self._socket.sendmsg(pieces)  # head and body together, as far as there is room
        except BlockingIOError:
            num_sent = 0
        for piece in pieces:
            if num_sent < len(piece):
                await loop.sock_sendall(self._socket, memoryview(piece)[num_sent:])
            num_sent = max(0, num_sent - len(piece))
            self.num_sent += len(piece)
        return await self._receive(loop, self._socket)

    async def _receive(self, loop: asyncio.AbstractEventLoop, connected: socket.socket) -> Answer:
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            data = await loop.sock_recv(connected, KEEP_BYTES)
            if not data:
                raise AnswerUnusable("hung up inside the headers") if received else _ClosedWhileIdle
            received += data
            self.num_received += len(data)
        status_line, *lines = received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split(" ", 2)[1])
        if "transfer-encoding" in headers:
            raise AnswerUnusable("the body has no Content-Length")
        num_bytes = 0 if status in (204, 304) else int(headers.get("content-length", 0))
        body = await self._read_body(loop, connected, received[end + 4 :], num_bytes)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, headers, num_bytes, body)

    async def _read_body(
        self, loop: asyncio.AbstractEventLoop, connected: socket.socket, first: bytes, num_bytes: int
    ) -> bytes:
        missing, kept = num_bytes - len(first), [first]
        while missing > 0:
            num_read = await loop.sock_recv_into(connected, memoryview(_discarded)[: min(missing, len(_discarded))])
            if not num_read:
                raise AnswerUnusable(f"hung up {missing} bytes before the end of the body")
            if num_bytes <= KEEP_BYTES:
                kept.append(bytes(_discarded[:num_read]))
            missing -= num_read
            self.num_received += num_read
        return b"".join(kept) if num_bytes <= KEEP_BYTES else b""


class _ClosedWhileIdle(Exception):
    """The server closed a kept connection before the request reached it: the request may be sent again."""
