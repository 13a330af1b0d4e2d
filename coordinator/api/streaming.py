"""A journal as pages, or as server-sent events that can be resumed: `id:` is the sequence number, `event:` the type."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from coordinator.api.auth import Action, Caller, is_shut_out
from coordinator.api.bodies import answer_page
from coordinator.api.problems import problems
from coordinator.store.paging import Position, encode
from services.core.errors import Rejected
from services.wire.v1.erasure import ErasureEvent
from services.wire.v1.resources import Event, Page
from services.wire.v1.views import FeedEvent

SSE: Final = "text/event-stream"
LOOK_EVERY_S: Final = 5.0
"""How often to look without having been rung: the price of a lost wake-up."""
COMMENT_EVERY_S: Final = 15.0
BATCH: Final = 200
LARGEST: Final = 2**63 - 1
AnyEvent = Event | ErasureEvent | FeedEvent


@dataclass(frozen=True, slots=True)
class Journal:
    """What is read from. `key` is rung after new events."""

    key: str
    page: Callable[[Position], Awaitable[Page[Any]]]
    has_ended: Callable[[], Awaitable[bool]]
    rest_s: float = 0.0
    """How long a reader that has seen everything waits before it looks again."""

    async def after(self, seq: int) -> list[AnyEvent]:
        return (await self.page(Position(BATCH, encode(seq)))).items


@dataclass(frozen=True, slots=True)
class JournalRange:
    """The part of a journal that a request asks for."""

    after: int
    position: Position
    last_event_id: str | None


def _wanted(
    after: Annotated[int, Query(ge=0, le=LARGEST, description="Only events with a larger `seq`.")] = 0,
    cursor: Annotated[str | None, Query(max_length=500, description="Pages: `next_cursor` of the one before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Pages: at most so many.")] = 50,
    last_event_id: Annotated[str | None, Header(max_length=20, include_in_schema=False)] = None,
) -> JournalRange:
    return JournalRange(after, Position(limit, cursor or encode(after)), last_event_id)


def _wanted_stream(
    after: Annotated[int, Query(ge=0, le=LARGEST, description="Only events with a larger `seq`.")] = 0,
    last_event_id: Annotated[str | None, Header(max_length=20, description="Resume after this one.")] = None,
) -> JournalRange:
    return JournalRange(after, Position(BATCH, None), last_event_id)


WantedEvents = Annotated[JournalRange, Depends(_wanted)]
WantedStream = Annotated[JournalRange, Depends(_wanted_stream)]


def stream_responses(when_over: str, *codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of an operation that answers with a stream."""
    return {
        200: {
            "description": "Server-sent events: `id` is the sequence number, `event` the type, `data` the event.",
            "content": {SSE: {"schema": {"type": "string"}}},
        },
        204: {"description": when_over},
        **problems(*codes),
    }


@dataclass(frozen=True, slots=True)
class Listener:
    """Whoever asked for a stream, and as what they may read it."""

    request: Request
    caller: Caller
    action: Action


async def answer_journal(listener: Listener, journal: Journal, wanted: JournalRange) -> Response:
    if "application/json" in listener.request.headers.get("accept", ""):
        return answer_page(listener.request, await journal.page(wanted.position))
    return await answer_stream(listener, journal, wanted)


async def answer_stream(listener: Listener, journal: Journal, wanted: JournalRange) -> Response:
    seen = resumed_at(wanted.last_event_id, wanted.after)
    if not await journal.after(seen) and await journal.has_ended():
        return Response(status_code=204)  # tells an EventSource to stop reconnecting
    return open_stream(listener, journal, seen)


def open_stream(listener: Listener, journal: Journal, seen: int) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(listener, journal, seen), headers=headers, media_type=SSE)


def resumed_at(last_event_id: str | None, after: int) -> int:
    if last_event_id is None:
        return after
    if not last_event_id.isdecimal() or int(last_event_id) > LARGEST:
        raise Rejected("invalid-request", "Last-Event-ID must be the id of an event of this journal")
    return int(last_event_id)


async def _stream(listener: Listener, journal: Journal, seen: int) -> AsyncIterator[bytes]:
    """Every event after `seen`, as they come; ends when the journal has ended and its last event is out, or when who
    listens may not any more: with the session or the credential that it was opened with."""
    yield f"retry: 2000\nid: {seen}\n\n".encode()
    said_at, caller = time.monotonic(), listener.caller
    with (
        caller.coordinator.bus.waiter(journal.key) as waiter,
        caller.context.authenticator.waking(waiter, caller.principal.credential_id),
    ):
        while True:
            if await is_shut_out(listener.request, caller, listener.action):
                return
            has_ended = await journal.has_ended()  # asked before, so that the events of its end are not missed
            events = await journal.after(seen)
            if events:
                yield b"".join(map(_frame, events))
                seen, said_at = events[-1].seq, time.monotonic()
                if len(events) < BATCH:
                    await asyncio.sleep(journal.rest_s)
                continue
            if has_ended:
                return
            if time.monotonic() - said_at >= COMMENT_EVERY_S:
                yield b": still here\n\n"
                said_at = time.monotonic()
            await waiter.wait(LOOK_EVERY_S)


def _frame(event: AnyEvent) -> bytes:
    return f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()
