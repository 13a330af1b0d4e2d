"""The journals of runs and of requests to forget, and the feed of a federation, as pages and as streams. The addresses
of the journals' pages give streams as well to whoever does not ask for JSON: callers from before the streams had
addresses of their own do that."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response

from coordinator.api.auth import Caller, Follower, Reader
from coordinator.api.bodies import WantedPage, answer_page
from coordinator.api.erasures import view_of
from coordinator.api.problems import problems
from coordinator.api.streaming import (
    LARGEST,
    Journal,
    Listener,
    WantedEvents,
    WantedStream,
    answer_journal,
    answer_stream,
    open_stream,
    resumed_at,
    stream_responses,
)
from coordinator.engine.react import erasure_key, federation_key, run_key
from coordinator.store import accounts, erasures, queries
from coordinator.store.paging import Position, encode
from services.wire.v1.erasure import ErasureEvent
from services.wire.v1.resources import Event, Page
from services.wire.v1.views import FeedEvent

router = APIRouter(prefix="/v1")


@router.get(
    "/runs/{run_id}/events",
    tags=["events"],
    response_model=Page[Event],
    responses=problems("unauthenticated", "forbidden", "not-found"),
)
async def list_events(request: Request, run_id: UUID, caller: Reader, wanted: WantedEvents) -> Response:
    """What happened to the run, in order: ids, digests and counts."""
    return await answer_journal(Listener(request, caller, "read"), await _of_run(caller, run_id), wanted)


@router.get(
    "/runs/{run_id}/events/stream",
    tags=["events"],
    response_class=Response,
    responses=stream_responses(
        "The run has ended and the caller has seen everything.", "unauthenticated", "forbidden", "not-found"
    ),
)
async def stream_events(request: Request, run_id: UUID, caller: Reader, wanted: WantedStream) -> Response:
    """What happened and happens to the run, until it ends."""
    return await answer_stream(Listener(request, caller, "read"), await _of_run(caller, run_id), wanted)


async def _of_run(caller: Caller, run_id: UUID) -> Journal:
    coordinator = caller.coordinator
    async with coordinator.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)

    async def page(position: Position) -> Page[Event]:
        async with coordinator.database.read() as connection:
            return await queries.events(connection, run_id, position)

    async def has_ended() -> bool:
        async with coordinator.database.read() as connection:
            return await queries.has_ended(connection, run_id)

    return Journal(run_key(run_id), page, has_ended)


_OF_ERASURE: Final = ("unauthenticated", "forbidden", "client-removed", "not-found")


@router.get(
    "/erasure-requests/{erasure_id}/events",
    tags=["erasure"],
    response_model=Page[ErasureEvent],
    responses=problems(*_OF_ERASURE),
)
async def list_erasure_events(request: Request, erasure_id: UUID, caller: Follower, wanted: WantedEvents) -> Response:
    """What happened to the request, in order."""
    return await answer_journal(Listener(request, caller, "follow"), await _of_erasure(caller, erasure_id), wanted)


@router.get(
    "/erasure-requests/{erasure_id}/events/stream",
    tags=["erasure"],
    response_class=Response,
    responses=stream_responses("The request is over and the caller has seen everything.", *_OF_ERASURE),
)
async def stream_erasure_events(request: Request, erasure_id: UUID, caller: Follower, wanted: WantedStream) -> Response:
    """What happened and happens to the request, until it is completed, denied, cancelled or failed."""
    return await answer_stream(Listener(request, caller, "follow"), await _of_erasure(caller, erasure_id), wanted)


async def _of_erasure(caller: Caller, erasure_id: UUID) -> Journal:
    coordinator = caller.coordinator
    async with coordinator.database.read() as connection:
        await erasures.require(connection, erasure_id, view_of(caller))

    async def page(position: Position) -> Page[ErasureEvent]:
        async with coordinator.database.read() as connection:
            return await erasures.events(connection, erasure_id, position)

    async def has_ended() -> bool:
        async with coordinator.database.read() as connection:
            return await erasures.has_settled(connection, erasure_id)

    return Journal(erasure_key(erasure_id), page, has_ended)


_OF_FEDERATION: Final = ("unauthenticated", "forbidden", "not-found")
REST_S: Final = 0.25
"""Events that come closer together than this are told together."""


@router.get(
    "/federations/{federation_id}/events",
    tags=["events"],
    response_model=Page[FeedEvent],
    responses=problems(*_OF_FEDERATION),
)
async def list_federation_events(
    request: Request,
    federation_id: UUID,
    caller: Reader,
    position: WantedPage,
    after: Annotated[int, Query(ge=0, le=LARGEST, description="Only events with a larger `seq`.")] = 0,
    newest_first: bool = False,
) -> Response:
    """What happened to all runs and requests of the federation. The events of each of them are in their order, and an
    event that is about a run and a request is told once."""
    if after and position.cursor is None and not newest_first:
        position = Position(position.limit, encode(after))
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
    found = await caller.coordinator.feed.page(federation_id, position, newest_first=newest_first)
    return answer_page(request, found)


@router.get(
    "/federations/{federation_id}/events/stream",
    tags=["events"],
    response_class=Response,
    responses=stream_responses("Never: a federation goes on.", *_OF_FEDERATION),
)
async def stream_federation_events(
    request: Request,
    federation_id: UUID,
    caller: Reader,
    after: Annotated[
        int | None,
        Query(ge=0, le=LARGEST, description="Also what happened before, with a larger `seq`; 0: from the beginning."),
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=20, description="Resume after this one.")] = None,
) -> Response:
    """What happens to all runs and requests of the federation, from now on. Its numbers hold on every replica: whoever
    resumes behind the last one that it saw misses nothing and gets nothing twice."""
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
    feed = caller.coordinator.feed

    async def page(position: Position) -> Page[FeedEvent]:
        return await feed.page(federation_id, position)

    async def has_ended() -> bool:
        return False

    journal = Journal(federation_key(federation_id), page, has_ended, REST_S)
    start = after if after is not None or last_event_id is not None else await feed.head(federation_id)
    return open_stream(Listener(request, caller, "read"), journal, resumed_at(last_event_id, start or 0))
