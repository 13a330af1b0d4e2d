"""A journal as server-sent events that can be resumed: `id:` is the sequence number, `event:` the type."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import Response
from fastapi.responses import StreamingResponse

from coordinator.bus.port import Bus
from services.core.errors import Rejected
from services.wire.v1.erasure import ErasureEvent
from services.wire.v1.resources import Event

SSE: Final = "text/event-stream"
LOOK_EVERY_S: Final = 5.0
"""How often to look without having been rung: the price of a lost wake-up."""
COMMENT_EVERY_S: Final = 15.0
BATCH: Final = 200
LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Journal:
    """What a stream is read from. `key` is rung after new events; `after(seq)` gives the next ones."""

    key: str
    after: Callable[[int], Awaitable[Sequence[Event | ErasureEvent]]]
    has_ended: Callable[[], Awaitable[bool]]


def resumed_at(last_event_id: str | None, after: int) -> int:
    if last_event_id is None:
        return after
    if not last_event_id.isdecimal() or int(last_event_id) > LARGEST:
        raise Rejected("invalid-request", "Last-Event-ID must be the id of an event of this journal")
    return int(last_event_id)


async def answer_stream(bus: Bus, journal: Journal, seen: int) -> Response:
    if not await journal.after(seen) and await journal.has_ended():
        return Response(status_code=204)  # tells an EventSource to stop reconnecting
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(bus, journal, seen), headers=headers, media_type=SSE)


async def _stream(bus: Bus, journal: Journal, seen: int) -> AsyncIterator[bytes]:
    """Every event after `seen`, as they come; ends when the journal has ended and its last event is out."""
    yield b"retry: 2000\n\n"
    said_at = time.monotonic()
    with bus.waiter(journal.key) as waiter:
        while True:
            has_ended = await journal.has_ended()  # asked before, so that the events of its end are not missed
            events = await journal.after(seen)
            if events:
                yield b"".join(map(_frame, events))
                seen, said_at = events[-1].seq, time.monotonic()
                continue
            if has_ended:
                return
            if time.monotonic() - said_at >= COMMENT_EVERY_S:
                yield b": still here\n\n"
                said_at = time.monotonic()
            await waiter.wait(LOOK_EVERY_S)


def _frame(event: Event | ErasureEvent) -> bytes:
    return f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()
