"""People who watch: streams of a federation's events that are held open while something else is measured.

One thread reads them all from plain sockets, because what reads them is another machine's work and shall cost little
here. That every stream was open, and heard of the run, is checked.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.processes import ProcessDied
from benchmarks.served import ADMIN_TOKEN, Served

OPEN_WITHIN_S: Final = 30.0


@dataclass
class Watched:
    num_bytes: list[int] = field(default_factory=list)
    """Of each stream, so far."""


@contextmanager
def watched(served: Served, num_streams: int) -> Iterator[Watched]:
    """Holds as many streams of the federation open."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(_opened(served)) for _ in range(num_streams)]
        seen, ending = Watched([0] * num_streams), threading.Event()
        reader = threading.Thread(target=_read, args=(sockets, seen, ending), daemon=True)
        reader.start()
        try:
            yield seen
        finally:
            ending.set()
            reader.join()
    if deaf := [place for place, num_bytes in enumerate(seen.num_bytes) if num_bytes == 0]:
        raise ProcessDied(f"streams {deaf} of {num_streams} heard of nothing")


def _opened(served: Served) -> socket.socket:
    """Answered with its headers: the stream is open."""
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=OPEN_WITHIN_S)
    head = (
        f"GET /v1/federations/{served.federation_id}/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {ADMIN_TOKEN}\r\nAccept: text/event-stream\r\n\r\n"
    )
    connection.sendall(head.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = connection.recv(4096)
        if not part:
            break
        answer += part
    if not answer.startswith(b"HTTP/1.1 200"):
        connection.close()
        raise ProcessDied(f"a stream was answered with {answer[:200]!r}")
    connection.setblocking(False)
    return connection


def _read(sockets: list[socket.socket], seen: Watched, ending: threading.Event) -> None:
    with selectors.DefaultSelector() as selector:
        for place, connection in enumerate(sockets):
            selector.register(connection, selectors.EVENT_READ, place)
        while not ending.is_set():
            for key, _ in selector.select(timeout=0.2):
                part = sockets[key.data].recv(65_536)
                seen.num_bytes[key.data] += len(part)
                if not part:
                    selector.unregister(sockets[key.data])
