"""Federations, and the credentials of the people in them."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from fastapi import APIRouter, Request, Response

from coordinator.api.auth import Admin, Reader
from coordinator.api.bodies import JsonRoute, WantedPage, answer, answer_page
from coordinator.api.problems import problems
from coordinator.runtime.accounts import create_federation as create
from coordinator.runtime.accounts import issue_credential as issue
from coordinator.runtime.accounts import revoke_credential as revoke
from coordinator.store import accounts
from services.core.errors import Rejected
from services.wire.v1.resources import (
    Credential,
    CredentialCreate,
    Federation,
    FederationCreate,
    IssuedCredential,
    Page,
)

router = APIRouter(prefix="/v1", tags=["federations"], route_class=JsonRoute)
_ALWAYS: Final = ("unauthenticated", "forbidden")
_BODY: Final = ("too-large", "unsupported-media-type")


@router.post(
    "/federations", status_code=201, response_model=Federation, responses=problems(*_ALWAYS, *_BODY, "name-taken")
)
async def create_federation(body: FederationCreate, caller: Admin) -> Response:
    """Only the installation's admin may."""
    if caller.within is not None:
        raise Rejected("forbidden", "only the installation's admin may create federations")
    made = await create(caller.coordinator, body.name)
    return answer(made, 201, {"Location": f"/v1/federations/{made.id}"})


@router.get("/federations", response_model=Page[Federation], responses=problems(*_ALWAYS))
async def list_federations(request: Request, caller: Reader, position: WantedPage) -> Response:
    async with caller.database.read() as connection:
        page = await accounts.federations(connection, caller.within, position)
    return answer_page(request, page)


@router.get("/federations/{federation_id}", response_model=Federation, responses=problems(*_ALWAYS, "not-found"))
async def get_federation(federation_id: UUID, caller: Reader) -> Response:
    async with caller.database.read() as connection:
        found = await accounts.federation(connection, federation_id, caller.within)
    return answer(found)


@router.post(
    "/federations/{federation_id}/credentials",
    status_code=201,
    response_model=IssuedCredential,
    responses=problems(*_ALWAYS, *_BODY, "not-found"),
    tags=["credentials"],
)
async def create_credential(federation_id: UUID, body: CredentialCreate, caller: Admin) -> Response:
    """Issue a token with a role in this federation. It is shown this once."""
    made = await issue(caller.coordinator, federation_id, body, caller.within)
    return answer(made, 201, {"Cache-Control": "no-store"})


@router.get(
    "/federations/{federation_id}/credentials",
    response_model=Page[Credential],
    responses=problems(*_ALWAYS, "not-found"),
    tags=["credentials"],
)
async def list_credentials(request: Request, federation_id: UUID, caller: Admin, position: WantedPage) -> Response:
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        page = await accounts.credentials(connection, federation_id, position)
    return answer_page(request, page)


@router.delete(
    "/credentials/{credential_id}",
    status_code=204,
    response_class=Response,
    responses=problems(*_ALWAYS, "not-found", "conflict"),
    tags=["credentials"],
)
async def revoke_credential(credential_id: UUID, caller: Admin) -> Response:
    await revoke(caller.coordinator, credential_id, caller.within)
    caller.context.authenticator.forget([credential_id])
    return Response(status_code=204)
