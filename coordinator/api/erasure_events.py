"""The log of a request to forget: as a stream of server-sent events that can be resumed, or as pages."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request, Response

from coordinator.api.auth import Caller, Follower
from coordinator.api.bodies import answer_page
from coordinator.api.erasures import view_of
from coordinator.api.events import After, LastEventId, PageCursor, PageLimit
from coordinator.api.problems import problems
from coordinator.api.streaming import BATCH, SSE, Journal, answer_stream, resumed_at
from coordinator.engine.react import erasure_key
from coordinator.store import erasures
from coordinator.store.paging import Position, encode
from services.wire.v1.erasure import ErasureEvent
from services.wire.v1.resources import Page

router = APIRouter(prefix="/v1/erasure-requests", tags=["erasure"])


@router.get(
    "/{erasure_id}/events",
    response_model=Page[ErasureEvent],
    responses={
        200: {
            "description": "A stream, or a page with `Accept: application/json`.",
            "content": {SSE: {"schema": {"type": "string"}}},
        },
        204: {"description": "The request is over and the caller has seen everything."},
        **problems("unauthenticated", "forbidden", "client-removed", "not-found"),
    },
)
async def list_erasure_events(
    request: Request,
    erasure_id: UUID,
    caller: Follower,
    after: After = 0,
    cursor: PageCursor = None,
    limit: PageLimit = 50,
    last_event_id: LastEventId = None,
) -> Response:
    """What happened to the request, in order; the stream ends when it is completed, denied, cancelled or failed."""
    coordinator = caller.context.coordinator
    async with coordinator.database.read() as connection:
        await erasures.require(connection, erasure_id, view_of(caller))
        if "application/json" in request.headers.get("accept", ""):
            page = await erasures.events(connection, erasure_id, Position(limit, cursor or encode(after)))
            return answer_page(request, page)
    return await answer_stream(coordinator.bus, _journal(caller, erasure_id), resumed_at(last_event_id, after))


def _journal(caller: Caller, erasure_id: UUID) -> Journal:
    database = caller.context.coordinator.database

    async def after(seen: int) -> list[ErasureEvent]:
        async with database.read() as connection:
            return (await erasures.events(connection, erasure_id, Position(BATCH, encode(seen)))).items

    async def has_ended() -> bool:
        async with database.read() as connection:
            return await erasures.has_settled(connection, erasure_id)

    return Journal(erasure_key(erasure_id), after, has_ended)
