"""A run's journal: as a stream of server-sent events that can be resumed, or as pages."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response

from coordinator.api.auth import Caller, Reader
from coordinator.api.bodies import answer_page
from coordinator.api.problems import problems
from coordinator.api.streaming import BATCH, LARGEST, SSE, Journal, answer_stream, resumed_at
from coordinator.engine.react import run_key
from coordinator.store import queries
from coordinator.store.paging import Position, encode
from services.wire.v1.resources import Event, Page

router = APIRouter(prefix="/v1/runs", tags=["events"])

After = Annotated[int, Query(ge=0, le=LARGEST, description="Only events with a larger `seq`.")]
PageCursor = Annotated[str | None, Query(max_length=500, description="Pages: `next_cursor` of the one before.")]
PageLimit = Annotated[int, Query(ge=1, le=200, description="Pages: at most so many.")]
LastEventId = Annotated[str | None, Header(max_length=20, description="Streams: resume after this one.")]


@router.get(
    "/{run_id}/events",
    response_model=Page[Event],
    responses={
        200: {
            "description": "A stream, or a page with `Accept: application/json`.",
            "content": {SSE: {"schema": {"type": "string"}}},
        },
        204: {"description": "The run has ended and the caller has seen everything."},
        **problems("unauthenticated", "forbidden", "not-found"),
    },
)
async def list_events(
    request: Request,
    run_id: UUID,
    caller: Reader,
    after: After = 0,
    cursor: PageCursor = None,
    limit: PageLimit = 50,
    last_event_id: LastEventId = None,
) -> Response:
    """What happened to the run, in order: ids, digests and counts."""
    coordinator = caller.context.coordinator
    async with coordinator.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)
        if "application/json" in request.headers.get("accept", ""):
            page = await queries.events(connection, run_id, Position(limit, cursor or encode(after)))
            return answer_page(request, page)
    return await answer_stream(coordinator.bus, _journal(caller, run_id), resumed_at(last_event_id, after))


def _journal(caller: Caller, run_id: UUID) -> Journal:
    database = caller.context.coordinator.database

    async def after(seen: int) -> list[Event]:
        async with database.read() as connection:
            return (await queries.events(connection, run_id, Position(BATCH, encode(seen)))).items

    async def has_ended() -> bool:
        async with database.read() as connection:
            return await queries.has_ended(connection, run_id)

    return Journal(run_key(run_id), after, has_ended)
