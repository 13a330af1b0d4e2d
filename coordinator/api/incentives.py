"""How a federation divides its clients among jobs, and what they earn and pay."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from coordinator.api.auth import ALLOWED, Operator, Reader, Worker
from coordinator.api.bodies import JsonRoute, WantedPage, answer, answer_page
from coordinator.api.problems import problems
from coordinator.engine.messages import ChangeAllocation
from coordinator.runtime.accounts import change_four_eyes
from coordinator.runtime.incentives import next_period
from coordinator.store import accounts, incentive_queries
from services.core.errors import Rejected
from services.incentive.spec import Incentives, Strategy
from services.wire.v1.incentives import FederationChange, LedgerEntry, Period
from services.wire.v1.resources import Federation, Page

router = APIRouter(prefix="/v1", tags=["incentives"], route_class=JsonRoute)
_ALWAYS: Final = ("unauthenticated", "forbidden", "not-found")


@router.patch(
    "/federations/{federation_id}",
    response_model=Federation,
    responses=problems(*_ALWAYS, "too-large", "unsupported-media-type"),
)
async def change_federation(federation_id: UUID, body: FederationChange, caller: Operator) -> Response:
    """Divide clients among jobs in another way, from now on: a new period begins. Or, as an admin, say which requests
    to forget somebody else than the filer has to approve."""
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
    if body.four_eyes is not None:
        if caller.principal.role not in ALLOWED["administer"]:
            raise Rejected("forbidden", f"a {caller.principal.role} may not change four_eyes; it takes an admin")
        await change_four_eyes(caller.coordinator, federation_id, body.four_eyes, caller.within, caller.actor)
    if body.changes_allocation:
        act = await caller.act("federation.changed", federation_id)
        await caller.shell.handle(ChangeAllocation(federation_id, body.allocation, body.incentives), act)
    async with caller.database.read() as connection:
        changed = await accounts.federation(connection, federation_id, caller.within)
    return answer(changed)


@router.get("/federations/{federation_id}/periods", response_model=Page[Period], responses=problems(*_ALWAYS))
async def list_periods(request: Request, federation_id: UUID, caller: Reader, position: WantedPage) -> Response:
    """The newest first."""
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        page = await incentive_queries.periods(connection, federation_id, position)
    return answer_page(request, page)


@router.get("/federations/{federation_id}/periods/next", response_model=Period, responses=problems(*_ALWAYS))
async def preview_period(
    federation_id: UUID,
    caller: Reader,
    strategy: Annotated[Strategy | None, Query(description="As the federation divides; the game by default.")] = None,
) -> Response:
    """How clients would be divided if a period began now. Nothing is changed."""
    async with caller.database.read() as connection:
        known = await accounts.federation(connection, federation_id, caller.within)
    wanted = strategy or known.allocation or "game"
    change = ChangeAllocation(federation_id, wanted, known.incentives or Incentives())
    return answer(incentive_queries.shown(await next_period(caller.database, change)))


@router.get("/federations/{federation_id}/ledger", response_model=Page[LedgerEntry], responses=problems(*_ALWAYS))
async def list_ledger(request: Request, federation_id: UUID, caller: Reader, position: WantedPage) -> Response:
    """What clients earned and paid."""
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        page = await incentive_queries.ledger(connection, federation_id, position)
    return answer_page(request, page)


@router.get("/ledger", response_model=Page[LedgerEntry], responses=problems("unauthenticated", "forbidden"))
async def list_own_ledger(request: Request, caller: Worker, position: WantedPage) -> Response:
    """What the client whose token this is earned and paid."""
    async with caller.database.read() as connection:
        page = await incentive_queries.ledger_of_client(connection, caller.client_id, position)
    return answer_page(request, page)
