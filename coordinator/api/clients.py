"""Clients of a federation: enrol, look, rotate their tokens, remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from fastapi import APIRouter, Request, Response

from coordinator.api.auth import Caller, Enroller, Reader
from coordinator.api.bodies import JsonRoute, WantedPage, answer, answer_page
from coordinator.api.problems import problems
from coordinator.runtime.accounts import enrol_client, rotate_client
from coordinator.runtime.accounts import remove_client as remove
from coordinator.store import accounts
from services.wire.v1.resources import Client, ClientCreate, IssuedCredential, Page

router = APIRouter(prefix="/v1", tags=["clients"], route_class=JsonRoute)
_ALWAYS: Final = ("unauthenticated", "forbidden", "not-found")


@router.post(
    "/federations/{federation_id}/clients",
    status_code=201,
    response_model=IssuedCredential,
    responses=problems(*_ALWAYS, "too-large", "unsupported-media-type", "name-taken"),
)
async def create_client(federation_id: UUID, body: ClientCreate, caller: Enroller) -> Response:
    """Enrol a data holder. Its agent's token is shown this once."""
    made = await enrol_client(caller.coordinator, federation_id, body, caller.within)
    return answer(made, 201, {"Cache-Control": "no-store"})


@router.get("/federations/{federation_id}/clients", response_model=Page[Client], responses=problems(*_ALWAYS))
async def list_clients(request: Request, federation_id: UUID, caller: Reader, position: WantedPage) -> Response:
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        page = await accounts.clients(connection, federation_id, position)
    shown = await _with_presence(caller, page.items)
    return answer_page(request, Page(items=shown, next_cursor=page.next_cursor))


@router.get("/clients/{client_id}", response_model=Client, responses=problems(*_ALWAYS))
async def get_client(client_id: UUID, caller: Reader) -> Response:
    async with caller.database.read() as connection:
        client = await accounts.client(connection, client_id, caller.within)
    return answer((await _with_presence(caller, [client]))[0])


@router.post(
    "/clients/{client_id}/credentials",
    status_code=201,
    response_model=IssuedCredential,
    responses=problems(*_ALWAYS, "conflict"),
)
async def rotate_client_credential(client_id: UUID, caller: Enroller) -> Response:
    """A new token for the client's agent, shown this once; the old one stops working."""
    coordinator = caller.coordinator
    async with coordinator.database.read() as connection:
        old = await accounts.active_credentials(connection, client_id)
    made = await rotate_client(coordinator, client_id, caller.within)
    caller.context.authenticator.forget(old)
    return answer(made, 201, {"Cache-Control": "no-store"})


@router.delete("/clients/{client_id}", status_code=204, response_class=Response, responses=problems(*_ALWAYS))
async def remove_client(client_id: UUID, caller: Enroller) -> Response:
    """The client leaves: its open tasks are withdrawn, its agent is told to stop, and what it uploaded and nobody needs
    is deleted."""
    caller.context.authenticator.forget(await remove(caller.coordinator, client_id, caller.within))
    return Response(status_code=204)


async def _with_presence(caller: Caller, clients: Sequence[Client]) -> list[Client]:
    online = await caller.coordinator.bus.alive([str(client.id) for client in clients])
    return [client.model_copy(update={"online": str(client.id) in online}) for client in clients]
