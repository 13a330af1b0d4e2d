"""The journals of runs and of requests to forget, as pages and as streams. The pages' addresses give streams as well to
whoever does not ask for JSON: callers from before the streams had addresses of their own do that."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from fastapi import APIRouter, Request, Response

from coordinator.api.auth import Caller, Follower, Reader
from coordinator.api.erasures import view_of
from coordinator.api.problems import problems
from coordinator.api.streaming import (
    Journal,
    WantedEvents,
    WantedStream,
    answer_journal,
    answer_stream,
    stream_responses,
)
from coordinator.engine.react import erasure_key, run_key
from coordinator.store import erasures, queries
from coordinator.store.paging import Position
from services.wire.v1.erasure import ErasureEvent
from services.wire.v1.resources import Event, Page

router = APIRouter(prefix="/v1")


@router.get(
    "/runs/{run_id}/events",
    tags=["events"],
    response_model=Page[Event],
    responses=problems("unauthenticated", "forbidden", "not-found"),
)
async def list_events(request: Request, run_id: UUID, caller: Reader, wanted: WantedEvents) -> Response:
    """What happened to the run, in order: ids, digests and counts."""
    return await answer_journal(request, caller.coordinator.bus, await _of_run(caller, run_id), wanted)


@router.get(
    "/runs/{run_id}/events/stream",
    tags=["events"],
    response_class=Response,
    responses=stream_responses(
        "The run has ended and the caller has seen everything.", "unauthenticated", "forbidden", "not-found"
    ),
)
async def stream_events(run_id: UUID, caller: Reader, wanted: WantedStream) -> Response:
    """What happened and happens to the run, until it ends."""
    return await answer_stream(caller.coordinator.bus, await _of_run(caller, run_id), wanted)


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
    return await answer_journal(request, caller.coordinator.bus, await _of_erasure(caller, erasure_id), wanted)


@router.get(
    "/erasure-requests/{erasure_id}/events/stream",
    tags=["erasure"],
    response_class=Response,
    responses=stream_responses("The request is over and the caller has seen everything.", *_OF_ERASURE),
)
async def stream_erasure_events(erasure_id: UUID, caller: Follower, wanted: WantedStream) -> Response:
    """What happened and happens to the request, until it is completed, denied, cancelled or failed."""
    return await answer_stream(caller.coordinator.bus, await _of_erasure(caller, erasure_id), wanted)


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
