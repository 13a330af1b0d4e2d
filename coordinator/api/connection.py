"""A connection whose other end may be slow, silent or hostile: bounded in bytes and in time, whatever is sent.

uvicorn reads heads of any length, waits for the rest of a request for ever, and keeps what a peer does not read. Here

- a request's head (also the trailers and chunk extensions of its body) has a size and a time;
- a body, in either direction, has a slowest pace: so many bytes in each window of `body_timeout_s`. Time in which it is
  the application that does not read does not count. Long polls and event streams wait without any such debt;
- a connection on which nothing is asked is closed, also one that sends empty lines.

For the application, a request that was ended looks like one whose connection broke: what was received stays.
"""

from __future__ import annotations

import fcntl
import ipaddress
import struct
import termios
from asyncio import Transport
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from coordinator.api.problems import MEDIA_TYPE, PROBLEMS, document
from coordinator.runtime.settings import Settings

MOST_HEADERS: Final = 100
MOST_PIPELINED: Final = 8
OVERHEAD_PER_BYTE: Final = 16
"""Bytes of chunk sizes that one byte of a body may cost its sender before they count as a head."""


@dataclass(slots=True)
class OpenConnections:
    """What the connections of one server have in common."""

    settings: Settings
    refused: Callable[[str], None]
    """Hears the code of each refusal."""
    connected: Counter[str] = field(default_factory=Counter)

    def are_too_many(self, peer: str) -> bool:
        """Whether the newest connection of an address is one too many. Proxies bring those of others."""
        if self.connected[peer] <= self.settings.max_connections_per_peer:
            return False
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:  # no network at all
            return False
        return not any(address in network for network in self.settings.proxies)


class Connection(HttpToolsProtocol):
    """`look` is called now and then, with the time that has passed."""

    def __init__(self, *args: Any, connections: OpenConnections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._settings = connections.settings
        self._reading: Literal["nothing", "head", "body"] = "nothing"
        self._waited_s = 0.0  # for the head, or for anything at all
        self._num_messages = 0
        self._num_overhead = 0  # bytes of this message that are not its body, since it was last heard of
        self._num_body = 0  # of the window
        self._window_s = 0.0
        self._unsent: int | None = None  # while the peer does not read
        self._unread_s = 0.0
        self._closing_s = 0.0
        self._is_over = False
        self._running: RequestResponseCycle | None = None

    # --- what the server calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as in the parent
        super().connection_made(transport)
        peer = self._peer()
        self._connections.connected[peer] += 1
        if self._connections.are_too_many(peer):
            most = self._settings.max_connections_per_peer
            self._refuse(
                "too-many-requests", f"{peer} has {most} connections (LETHE_MAX_CONNECTIONS_PER_PEER); close some"
            )

    def connection_lost(self, exc: Exception | None) -> None:
        peer = self._peer()
        self._connections.connected[peer] -= 1
        if not self._connections.connected[peer]:
            del self._connections.connected[peer]
        super().connection_lost(exc)
        self._abandon()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        num_before = self._num_messages
        self._num_overhead += len(data)
        super().data_received(data)
        if self._num_messages != num_before:
            self._num_overhead = 0  # most of it was of messages that are complete
        elif self._num_overhead > self._settings.max_header_bytes:
            self._refuse_large()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent, self._unread_s = self._count_unsent(), 0.0

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent = None

    def look(self, elapsed_s: float) -> None:
        """Judge the peer's pace. `elapsed_s` is time in which this process was there to read."""
        if self.transport.is_closing():
            self._closing_s += elapsed_s
            if self._closing_s >= self._settings.body_timeout_s:
                self.transport.abort()  # it never read the end of the answer
            return
        if self._unsent is not None:
            self._look_at_reading(elapsed_s)
        if self._reading == "body":
            self._look_at_body(elapsed_s)
        elif self._reading == "head":
            self._waited_s += elapsed_s
            if self._waited_s >= self._settings.header_timeout_s:
                self._refuse("request-timeout", "the request's headers took too long (LETHE_HEADER_TIMEOUT_S)")
        elif self._running is None or self._running.response_complete:
            self._waited_s += elapsed_s
            settings = self._settings
            if self._waited_s >= (settings.header_timeout_s if self._running is None else settings.keep_alive_s):
                self.transport.close()

    # --- what the parser calls ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_messages += 1
        self._reading, self._waited_s = "head", 0.0

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._settings.max_header_bytes or len(self.headers) > MOST_HEADERS:
            self._refuse_large()
        elif len(self.pipeline) >= MOST_PIPELINED:
            self._refuse("too-many-requests", f"{MOST_PIPELINED} requests wait already; send fewer at once")
        if self._is_over:
            return
        self._reading, self._num_body, self._window_s, self._num_overhead = "body", 0, 0.0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_over:
            self._num_body += len(body)
            self._num_overhead = max(0, self._num_overhead - OVERHEAD_PER_BYTE * len(body))
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_over:
            self._reading, self._waited_s = "nothing", 0.0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._waited_s = 0.0
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse("malformed-request", "this is not a request of HTTP/1.1")

    def _unsupported_upgrade_warning(self) -> None:
        """Answered as if nothing had been said of it, which is no news."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # --- judgement ----------------------------------------------------------------------------------------------------

    def _look_at_body(self, elapsed_s: float) -> None:
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            return  # it is for us to go on
        self._window_s += elapsed_s
        if self._window_s < self._settings.body_timeout_s:
            return
        if self._num_body < self._settings.min_body_rate * self._window_s:
            self._refuse(
                "request-timeout",
                f"the body brought less than {self._settings.min_body_rate} bytes a second for "
                f"{self._settings.body_timeout_s:g} s (LETHE_MIN_BODY_RATE, LETHE_BODY_TIMEOUT_S); an upload goes on "
                "from the offset that HEAD tells",
            )
        self._num_body, self._window_s = 0, 0.0

    def _look_at_reading(self, elapsed_s: float) -> None:
        self._unread_s += elapsed_s
        if self._unsent is None or self._unread_s < self._settings.body_timeout_s:
            return
        unsent = self._count_unsent()
        if self._unsent - unsent < self._settings.min_body_rate * self._unread_s:
            self._connections.refused("request-timeout")
            self.transport.abort()
        self._unsent, self._unread_s = unsent, 0.0

    def _count_unsent(self) -> int:
        """Bytes that the peer has not taken: here, and in the kernel, which makes room in large steps only."""
        queued = 0
        try:
            fd = self.transport.get_extra_info("socket").fileno()
            queued = struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0" * 4))[0]
        except (OSError, AttributeError):  # no such question there, or no socket any more
            pass
        return self.transport.get_write_buffer_size() + queued

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _refuse_large(self) -> None:
        most = self._settings.max_header_bytes
        self._refuse(
            "header-too-large", f"headers may have {most} bytes (LETHE_MAX_HEADER_BYTES) in {MOST_HEADERS} lines"
        )

    def _refuse(self, code: str, detail: str) -> None:
        """Answer if this is the place for an answer, and end the connection."""
        if self._is_over:
            return
        self._is_over = True
        self._connections.refused(code)
        running = self._running
        if self._reading == "body":
            may_answer = self.cycle is running and not running.response_started
        else:
            may_answer = running is None or running.response_complete
        if may_answer:
            self.transport.write(_answer(code, detail, self._instance()))
            self.transport.close()
        else:
            self.transport.abort()
        self._abandon()

    def _abandon(self) -> None:
        """Tell whoever works on a request of this connection that nobody waits for it."""
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self.flow.resume_writing()

    def _instance(self) -> str:
        return self.scope.get("path", "/") if self._num_messages else "/"  # before the first there is no scope

    def _peer(self) -> str:
        return self.client[0] if self.client is not None else "local"


def _answer(code: str, detail: str, instance: str) -> bytes:
    kind, content = PROBLEMS[code], document(code, detail, instance).encode()
    lines = [f"content-type: {MEDIA_TYPE}", f"content-length: {len(content)}", "connection: close"]
    if kind.retry_after_s is not None:
        lines.append(f"retry-after: {kind.retry_after_s}")
    return STATUS_LINE[kind.status] + "\r\n".join([*lines, "", ""]).encode() + content
