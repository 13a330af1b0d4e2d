"""Handing a certificate over to somebody without a credential, by a link that is opened once.

The secret of a link is behind the `#` of its address, which browsers send to nobody, and is spent by a POST that the
reader's click makes: programs that follow links in mail spend nothing.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from coordinator.api.auth import Judge
from coordinator.api.bodies import StrangersRoute, WantedPage, answer, answer_page
from coordinator.api.context import context_of
from coordinator.api.erasures import certified_by, view_of
from coordinator.api.pages import PAGE_HEADERS, page_of
from coordinator.api.problems import problems
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.evidence import described
from coordinator.store import erasures, hand_overs
from coordinator.store.database import NotReady
from coordinator.store.erasures import Certified, View
from services.audit import opening
from services.audit.certificate import artefact_root
from services.audit.keys import KeyUnreadable, public_pem
from services.audit.opening import OpeningInvalid
from services.audit.pages import html
from services.core.errors import Rejected
from services.wire.v1.resources import Page
from services.wire.v1.signin import HandedOver, HandOver, HandOverOpen, IssuedHandOver

router = APIRouter(prefix="/v1", tags=["erasure"])
open_router = APIRouter(tags=["erasure"], route_class=StrangersRoute)
LARGEST_LIST: Final = 64 << 20
"""A longer list of artefacts does not fit in one answer; whoever made the link can send it on another way."""
_ALWAYS: Final = ("unauthenticated", "forbidden", "not-found")
_NO_STORE: Final = {"Cache-Control": "no-store"}


@router.post(
    "/erasure-requests/{erasure_id}/hand-over",
    status_code=201,
    response_model=IssuedHandOver,
    responses=problems(*_ALWAYS, "csrf-failed", "certificate-not-ready"),
)
async def create_hand_over(
    erasure_id: UUID,
    caller: Judge,
    days: Annotated[int, Query(ge=1, le=90, description="How long the link can be opened.")] = 14,
) -> Response:
    """Make a link that hands the certificate, its list, its opening and the public key over once. It is shown this
    once: send it to the client who left, and to nobody else."""
    await certified_by(caller, erasure_id)
    async with caller.database.read() as connection:
        federation_id, _ = await erasures.concerned(connection, erasure_id)
    made = await caller.coordinator.hand_overs.make(erasure_id, federation_id, timedelta(days=days), caller.actor)
    return answer(made, 201, _NO_STORE)


@router.get("/erasure-requests/{erasure_id}/hand-overs", response_model=Page[HandOver], responses=problems(*_ALWAYS))
async def list_hand_overs(request: Request, erasure_id: UUID, caller: Judge, position: WantedPage) -> Response:
    """The links that were made for the request, newest first: whether and when each was opened."""
    async with caller.database.read() as connection:
        await erasures.require(connection, erasure_id, view_of(caller))
        found = await hand_overs.of_request(connection, erasure_id, position)
    return answer_page(request, found)


@router.delete(
    "/hand-overs/{hand_over_id}",
    status_code=204,
    response_class=Response,
    responses=problems(*_ALWAYS, "csrf-failed", "already-spent"),
)
async def revoke_hand_over(hand_over_id: UUID, caller: Judge) -> Response:
    """Make a link that was not opened yet void."""
    async with caller.database.read() as connection:
        known = await hand_overs.find(connection, hand_over_id)
    if known is None or caller.within not in (None, known.federation_id):
        raise Rejected("not-found", f"there is no hand-over {hand_over_id}")
    await caller.coordinator.hand_overs.revoke(known, caller.actor)
    return Response(status_code=204)


@open_router.post(
    "/v1/hand-overs/{hand_over_id}:open",
    response_model=HandedOver,
    responses=problems("not-found", "already-spent", "link-expired", "too-large", "unsupported-media-type"),
)
async def open_hand_over(request: Request, hand_over_id: UUID, body: HandOverOpen) -> Response:
    """Open a link. Needs no credential but the secret in the body, which is spent with the answer."""
    coordinator = context_of(request).coordinator
    known = await coordinator.hand_overs.check(hand_over_id, body.secret.get_secret_value())
    async with coordinator.database.read() as connection:
        certified = await erasures.certificate(connection, known.shown.erasure_id, View(known.federation_id))
    try:
        handed = await asyncio.to_thread(_read, coordinator, certified)
    except (OSError, KeyUnreadable) as error:
        raise NotReady(described(error)) from error
    await coordinator.hand_overs.spend(known)
    return answer(handed, headers=_NO_STORE)


@open_router.get("/hand-over", include_in_schema=False)
async def get_hand_over_page() -> Response:
    """Where a link leads. Says nothing about any: a browser does not send what is behind the `#`."""
    policy = f"{html.policy(html.HAND_OVER)}; frame-ancestors 'none'"
    headers = {**PAGE_HEADERS, **_NO_STORE, "Content-Security-Policy": policy}
    return Response(html.hand_over_page(), media_type=html.MEDIA_TYPE, headers=headers)


def _read(coordinator: Coordinator, certified: Certified) -> HandedOver:
    files = coordinator.erasure_steps.certificates.files
    keys = b"".join(map(public_pem, coordinator.signing_keys.public_keys()))
    root = artefact_root(certified.envelope)
    listed = files.list_path(certified.request_id, root) if root is not None else None
    return HandedOver(
        request_id=certified.request_id,
        certificate=certified.envelope.decode(),
        page=page_of(certified.envelope, keys, listed),
        artefacts=_text(listed) if listed is not None else None,
        opening=_opening(files.opening_path(certified.request_id)),
        public_key=keys.decode(),
    )


def _opening(path: Path) -> str | None:
    """An opening that names several clients is for none of them."""
    content = _text(path)
    try:
        is_own = content is not None and len(opening.read(content.encode()).clients) == 1
    except OpeningInvalid:
        return None
    return content if is_own else None


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() and path.stat().st_size <= LARGEST_LIST else None
