"""Requests to forget: discover, preview, file, list, follow, and the certificate; erasure_decisions.py has the rest."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import AwareDatetime

from coordinator.api.auth import ALLOWED, Caller, Follower, Petitioner, Previewer
from coordinator.api.blob_answers import MEDIA_TYPE as OCTETS
from coordinator.api.bodies import JsonRoute, WantedPage, answer, answer_page
from coordinator.api.problems import problems
from coordinator.engine.erasure.filing import FARTHEST_DEADLINE
from coordinator.engine.messages import FileErasure
from coordinator.runtime.evidence import described
from coordinator.runtime.filing import filing_of
from coordinator.runtime.preview import preview
from coordinator.runtime.shell import Replayed
from coordinator.store import accounts, erasures
from coordinator.store.acts import FILED
from coordinator.store.database import NotReady
from coordinator.store.erasures import Certified, Filters, View
from coordinator.store.inbox import InboxKey
from services.audit import artefact_list, opening
from services.audit.certificate import PAYLOAD_TYPE, artefact_root
from services.audit.keys import KeyUnreadable, key_id, public_pem
from services.core import digests
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.methods.catalogue import RECOVERY, UNLEARNING, package_of
from services.wire.v1.acts import ActAbout
from services.wire.v1.erasure import (
    LEGAL_DAYS,
    Discovery,
    ErasureCount,
    ErasureCreate,
    ErasureDelivery,
    ErasurePreview,
    ErasurePreviewRequest,
    ErasureRequest,
    ErasureStatus,
    MethodDescription,
    RecoveryDescription,
    Sort,
)
from services.wire.v1.resources import Page

router = APIRouter(prefix="/v1", tags=["erasure"], route_class=JsonRoute)
_ENVELOPE: Final = {"type": "object", "required": ["payload", "payloadType", "signatures"]}
_ALWAYS: Final = ("unauthenticated", "forbidden", "client-removed", "not-found")
_FILING: Final = (
    *_ALWAYS,
    "client-erased",
    "conflict",
    "already-erased",
    "method-unavailable",
    "callback-refused",
    "too-large",
    "unsupported-media-type",
)


@router.get("/erasure/discovery", response_model=Discovery, responses=problems(*_ALWAYS))
async def discover_erasure(caller: Follower) -> Response:
    """What can be forgotten here, how, and the public keys that certificates are verified with."""
    try:
        keys = await asyncio.to_thread(caller.coordinator.signing_keys.public_keys)
    except KeyUnreadable as error:
        raise NotReady(described(error)) from error
    return answer(
        Discovery(
            scopes=["client", "samples"],
            methods=[
                MethodDescription(
                    name=name,
                    guarantee=method.guarantee,
                    summary=method.summary,
                    granularity=method.granularity,
                    needs=method.needs,
                    params=method.spec.model_json_schema()["properties"],
                    package=str(package_of(name)),
                )
                for name, method in sorted(UNLEARNING.items())
            ],
            recoveries=[
                RecoveryDescription(
                    name=name,
                    summary=method.summary,
                    rounds=method.recovery_rounds,
                    needs_class=method.class_parameter is not None,
                    params=method.spec.model_json_schema().get("properties", {}),
                    package=str(package_of(name)),
                )
                for name, method in sorted(RECOVERY.items())
            ],
            public_key=b"".join(map(public_pem, keys)).decode(),
            key_id=key_id(keys[0]),
            legal_deadline_days=LEGAL_DAYS,
        )
    )


@router.post("/erasure-requests:preview", response_model=ErasurePreview, responses=problems(*_FILING))
async def preview_erasure(body: ErasurePreviewRequest, caller: Previewer) -> Response:
    """What a request with this body would do and cost. Refused where the request would be; changes nothing."""
    message = await _message(caller, body, None)
    return answer(await preview(caller.database, message))


@router.post(
    "/erasure-requests",
    status_code=202,
    response_model=ErasureRequest,
    responses=problems(*_FILING, "idempotency-key-missing", "idempotency-key-reused"),
)
async def file_erasure(
    body: ErasureCreate,
    caller: Petitioner,
    idempotency_key: Annotated[
        str, Header(alias="Idempotency-Key", min_length=1, max_length=255, description="New for each intent.")
    ],
) -> Response:
    """Ask that clients be forgotten. The fence follows at once, unless the request needs approval."""
    message = await _message(caller, body, body)
    inbox_key = InboxKey(
        principal=caller.principal.name,
        route="POST /v1/erasure-requests",
        key=idempotency_key,
        fingerprint=digests.of_json({**body.model_dump(mode="json"), "federation_id": str(message.federation_id)}),
        makes=message.erasure_id,
    )
    async with caller.database.read() as connection:
        whom = await accounts.client_ids(connection, message.federation_id, body.subjects)
    about = ActAbout(kind="request", id=message.erasure_id)
    act = await caller.act(FILED, message.federation_id, about, whom=whom, words=body.note)
    reply = await caller.shell.handle_once(message, inbox_key, act)
    erasure_id = reply.made if isinstance(reply, Replayed) else message.erasure_id
    return await answer_request(caller, erasure_id, 202)


async def _wanted_filters(
    status: Annotated[list[ErasureStatus] | None, Query(description="Any of these.", max_length=10)] = None,
    subject: Annotated[str | None, Query(max_length=63, description="A client that it is about, by its name.")] = None,
    run: Annotated[UUID | None, Query(description="A run that it touches, or will when it is fenced.")] = None,
    due_before: Annotated[
        AwareDatetime | None, Query(description="Not over, and the legal deadline is earlier than this.")
    ] = None,
    awaiting_my_approval: Annotated[bool, Query(description="Only those that you may decide now.")] = False,
) -> Filters:
    return Filters(tuple(status or ()), subject, run, due_before, awaiting_my_approval)


WantedFilters = Annotated[Filters, Depends(_wanted_filters)]


@router.get("/erasure-requests", response_model=Page[ErasureRequest], responses=problems(*_ALWAYS))
async def list_erasures(
    request: Request,
    caller: Follower,
    position: WantedPage,
    filters: WantedFilters,
    federation_id: UUID | None = None,
    sort: Annotated[Sort, Query(description="`-` begins with the latest.")] = "-created",
) -> Response:
    """Newest first, unless another order is asked for. A client sees the requests that are about it alone."""
    view = await _listed_view(caller, federation_id)
    database = caller.database
    async with database.read() as connection:
        now = await database.now(connection)
        page = await erasures.erasures(connection, view, filters, sort, position, now)
    return answer_page(request, page.model_copy(update={"items": [_explained(caller, one) for one in page.items]}))


@router.get("/erasure-requests:count", response_model=ErasureCount, responses=problems(*_ALWAYS))
async def count_erasures(caller: Follower, filters: WantedFilters, federation_id: UUID | None = None) -> Response:
    """How many requests a listing with these filters has, by what they need."""
    view = await _listed_view(caller, federation_id)
    async with caller.database.read() as connection:
        now = await caller.database.now(connection)
        found = await erasures.count(connection, view, filters, now)
    return answer(found)


@router.get("/erasure-requests/{erasure_id}", response_model=ErasureRequest, responses=problems(*_ALWAYS))
async def get_erasure(erasure_id: UUID, caller: Follower) -> Response:
    return await answer_request(caller, erasure_id)


@router.get(
    "/erasure-requests/{erasure_id}/deliveries", response_model=Page[ErasureDelivery], responses=problems(*_ALWAYS)
)
async def list_deliveries(request: Request, erasure_id: UUID, caller: Follower, position: WantedPage) -> Response:
    """What was, or is to be, posted to the request's callbacks, oldest first."""
    async with caller.database.read() as connection:
        await erasures.require(connection, erasure_id, view_of(caller))
        page = await erasures.deliveries(connection, erasure_id, position)
    return answer_page(request, page)


@router.get(
    "/erasure-requests/{erasure_id}/certificate",
    response_class=Response,
    responses={
        200: {
            "description": "The DSSE envelope, byte for byte as it was signed.",
            "content": {PAYLOAD_TYPE: {"schema": _ENVELOPE}},
        },
        **problems(*_ALWAYS, "certificate-not-ready"),
    },
)
async def get_certificate(erasure_id: UUID, caller: Follower) -> Response:
    """The evidence of a completed request. Keep the bytes: a certificate that is written anew does not verify."""
    return Response((await certified_by(caller, erasure_id)).envelope, media_type=PAYLOAD_TYPE)


@router.get(
    "/erasure-requests/{erasure_id}/certificate/artefacts",
    response_class=Response,
    responses={
        200: {
            "description": "JSON lines: for each artefact its kind, digest and disposition, and the salt of its leaf.",
            "content": {
                artefact_list.MEDIA_TYPE: {"schema": {"type": "string"}},
                OCTETS: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **problems(*_ALWAYS, "certificate-not-ready"),
    },
)
async def get_artefacts(request: Request, erasure_id: UUID, caller: Follower) -> Response:
    """The list that the certificate commits to by the root of a Merkle tree."""
    certified = await certified_by(caller, erasure_id)
    root = artefact_root(certified.envelope)
    if root is None:
        raise Rejected("not-found", "a certificate of the first version lists its artefacts itself")
    path = caller.coordinator.erasure_steps.certificates.files.list_path(certified.request_id, root)
    if not path.exists():
        raise Rejected("not-found", "the list of this certificate is not kept here any more; its signature still holds")
    wants_octets = request.headers.get("accept", "").startswith(OCTETS)
    return FileResponse(path, media_type=OCTETS if wants_octets else artefact_list.MEDIA_TYPE)


@router.get(
    "/erasure-requests/{erasure_id}/opening",
    response_class=Response,
    responses={
        200: {
            "description": "The request, the federation, the names of its clients, and the salt of their commitments.",
            "content": {opening.MEDIA_TYPE: {"schema": {"type": "object"}}},
        },
        **problems(*_ALWAYS, "certificate-not-ready"),
    },
)
async def get_opening(erasure_id: UUID, caller: Follower) -> Response:
    """With it anybody can check whom the certificate is about. For whoever may file such a request; a client's own."""
    certified = await certified_by(caller, erasure_id)
    principal = caller.principal
    if principal.role not in ALLOWED["erase"] and principal.name != certified.requested_by:
        raise Rejected("forbidden", f"a {principal.role} may not know whom the certificate is about")
    path = caller.coordinator.erasure_steps.certificates.files.opening_path(certified.request_id)
    if not path.exists():
        raise Rejected("not-found", "the opening of this certificate is not kept here any more")
    return FileResponse(path, media_type=opening.MEDIA_TYPE)


async def certified_by(caller: Caller, erasure_id: UUID) -> Certified:
    async with caller.database.read() as connection:
        return await erasures.certificate(connection, erasure_id, view_of(caller))


def view_of(caller: Caller) -> View:
    return View(caller.within, caller.principal.client_id)


async def _listed_view(caller: Caller, federation_id: UUID | None) -> View:
    return await _decider_view(caller, federation_id if caller.within is None else caller.federation(federation_id))


async def _decider_view(caller: Caller, within: UUID | None) -> View:
    """With what it takes to say which requests the caller may decide."""
    decider = caller.party if caller.may_decide else None
    return View(within, caller.principal.client_id, decider, await caller.makers())


async def _message(
    caller: Caller, wanted: ErasurePreviewRequest | ErasureCreate, filed: ErasureCreate | None
) -> FileErasure:
    """`filed`: the request itself; None for a preview."""
    own_name = caller.principal.client_name
    if own_name is not None and wanted.subjects != [own_name]:
        raise Rejected("forbidden", f"a client may ask for its own erasure only: subjects must be {own_name}")
    database, federation_id = caller.database, caller.federation(wanted.federation_id)
    async with database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        ids = await accounts.client_ids(connection, federation_id, wanted.subjects)
        now = await database.now(connection)
    alive = await caller.coordinator.bus.alive(map(str, ids.values()))
    message = filing_of(
        wanted,
        erasure_id=uuid7(now, os.urandom(10)),
        federation_id=federation_id,
        requested_by=caller.principal.name,
        now=now,
        salt=os.urandom(32),
    )
    message = replace(message, offline=tuple(sorted(name for name, one in ids.items() if str(one) not in alive)))
    if filed is None:
        return message
    return replace(
        message,
        legal_deadline=message.legal_deadline if filed.legal_deadline is None else _deadline(filed.legal_deadline, now),
        regulation=filed.regulation,
        needs_approval=filed.needs_approval,
        filed_by=caller.party,
        ground=filed.ground,
        external_ref=filed.external_ref,
        callbacks=await _callbacks(caller, filed, message.erasure_id),
    )


async def _callbacks(caller: Caller, filed: ErasureCreate, erasure_id: UUID) -> tuple[dict[str, Any], ...]:
    webhooks = caller.coordinator.webhooks
    for callback in filed.callbacks:
        webhooks.check_url(callback.url)
    try:
        return await webhooks.sealed(erasure_id, [callback.model_dump() for callback in filed.callbacks])
    except OSError as error:
        raise Rejected("unavailable", f"a callback's secret cannot be kept now: {described(error)}") from error


def _deadline(wanted: datetime, now: datetime) -> datetime:
    if not now < wanted <= now + FARTHEST_DEADLINE:
        raise Rejected("invalid-request", "legal_deadline must lie in the future, at most ten years from now")
    return wanted.astimezone(UTC)


async def answer_request(caller: Caller, erasure_id: UUID, status: int = 200) -> Response:
    database, view = caller.database, await _decider_view(caller, caller.within)
    async with database.read() as connection:
        now = await database.now(connection)
        found = _explained(caller, await erasures.erasure(connection, erasure_id, view, now))
    headers = {"ETag": f'"{found.version}"'}
    if status == 202:
        headers["Location"] = f"/v1/erasure-requests/{found.id}"
    return answer(found, status, headers)


def _explained(caller: Caller, found: ErasureRequest) -> ErasureRequest:
    """The request with what the coordinator had to set aside of it or of its runs, where it says nothing itself."""
    concerned = (found.id, *(line.run_id for line in found.lines if line.done_at is None))
    why = caller.coordinator.set_aside.why(*concerned) if found.reason is None else None
    return found if why is None else found.model_copy(update={"reason": why})
