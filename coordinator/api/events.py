"""The journals of runs and of requests to forget."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request, Response

from coordinator.api.auth import Follower, Reader
from coordinator.api.erasures import view_of
from coordinator.api.streaming import Journal, WantedEvents, answer_journal, journal_responses
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
    responses=journal_responses(
        "The run has ended and the caller has seen everything.", "unauthenticated", "forbidden", "not-found"
    ),
)
async def list_events(request: Request, run_id: UUID, caller: Reader, wanted: WantedEvents) -> Response:
    """What happened to the run, in order: ids, digests and counts."""
    coordinator = caller.coordinator
    async with coordinator.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)

    async def page(position: Position) -> Page[Event]:
        async with coordinator.database.read() as connection:
            return await queries.events(connection, run_id, position)

    async def has_ended() -> bool:
        async with coordinator.database.read() as connection:
            return await queries.has_ended(connection, run_id)

    return await answer_journal(request, coordinator.bus, Journal(run_key(run_id), page, has_ended), wanted)


@router.get(
    "/erasure-requests/{erasure_id}/events",
    tags=["erasure"],
    response_model=Page[ErasureEvent],
    responses=journal_responses(
        "The request is over and the caller has seen everything.",
        *("unauthenticated", "forbidden", "client-removed", "not-found"),
    ),
)
async def list_erasure_events(request: Request, erasure_id: UUID, caller: Follower, wanted: WantedEvents) -> Response:
    """What happened to the request, in order; the stream ends when it is completed, denied, cancelled or failed."""
    coordinator = caller.coordinator
    async with coordinator.database.read() as connection:
        await erasures.require(connection, erasure_id, view_of(caller))

    async def page(position: Position) -> Page[ErasureEvent]:
        async with coordinator.database.read() as connection:
            return await erasures.events(connection, erasure_id, position)

    async def has_ended() -> bool:
        async with coordinator.database.read() as connection:
            return await erasures.has_settled(connection, erasure_id)

    return await answer_journal(request, coordinator.bus, Journal(erasure_key(erasure_id), page, has_ended), wanted)
