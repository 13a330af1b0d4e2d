"""The log of acts of a federation: who did what, when and from where; and the signed head of its chain."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from coordinator.api.auth import Inspector
from coordinator.api.bodies import WantedPage, answer_page
from coordinator.api.problems import problems
from coordinator.store import accounts, acts
from coordinator.store.paging import Position, encode
from services.audit.acts import HEAD_TYPE
from services.core.errors import Rejected
from services.wire.v1.acts import RecordedAct
from services.wire.v1.resources import Page

router = APIRouter(prefix="/v1", tags=["acts"])
LARGEST: Final = 2**63 - 1
_ALWAYS: Final = ("unauthenticated", "forbidden", "not-found")
_ENVELOPE: Final = {"type": "object", "required": ["payload", "payloadType", "signatures"]}


@router.get("/federations/{federation_id}/acts", response_model=Page[RecordedAct], responses=problems(*_ALWAYS))
async def list_acts(
    request: Request,
    federation_id: UUID,
    caller: Inspector,
    position: WantedPage,
    after: Annotated[int, Query(ge=0, le=LARGEST, description="Only entries with a larger `seq`.")] = 0,
    about: Annotated[UUID | None, Query(description="Only about this run, erasure request or credential.")] = None,
    newest_first: bool = False,
) -> Response:
    """In the order of the chain. An act is in it a moment after it was done. What is said of somebody who was erased
    can be read by nobody any more."""
    if after and position.cursor is None and not newest_first:
        position = Position(position.limit, encode(after))
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        found = await acts.acts(connection, federation_id, position, about=about, newest_first=newest_first)
    opened = await asyncio.to_thread(caller.coordinator.acts.opened, found.items)
    return answer_page(request, Page[RecordedAct](items=opened, next_cursor=found.next_cursor))


@router.get(
    "/federations/{federation_id}/acts/head",
    response_class=Response,
    responses={
        200: {
            "description": "A DSSE envelope: federation, first and last entry, and the digests of the chain there.",
            "content": {HEAD_TYPE: {"schema": _ENVELOPE}},
        },
        **problems(*_ALWAYS),
    },
)
async def get_acts_head(federation_id: UUID, caller: Inspector) -> Response:
    """The newest signed head: with it and the entries anybody can check that none was changed, removed or moved."""
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        chain = await acts.chain(connection, federation_id)
    if chain is None or chain.head is None:
        raise Rejected("not-found", "nothing is signed yet of this federation's log of acts; ask again in a moment")
    return Response(chain.head, media_type=HEAD_TYPE)
