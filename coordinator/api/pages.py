"""Pages for people: a certificate as one HTML file, and a page that verifies certificates. The `lethe` command writes
the same pages. They have paths of their own, so that no generated client has to tell two kinds of answers apart."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final
from uuid import UUID

from fastapi import APIRouter, Response

from coordinator.api.auth import Follower
from coordinator.api.erasures import certified_by
from coordinator.api.problems import problems
from coordinator.runtime.evidence import described
from coordinator.store.database import NotReady
from services.audit.certificate import artefact_root
from services.audit.keys import KeyUnreadable, public_pem
from services.audit.pages import html
from services.audit.pages.certificate import NotShown, content_of, read
from services.audit.verification import Beside
from services.core.errors import InvariantBroken

router = APIRouter(tags=["erasure"])
_ALWAYS: Final = ("unauthenticated", "forbidden", "client-removed", "not-found", "certificate-not-ready")
_HTML: Final = {"content": {"text/html": {"schema": {"type": "string"}}}}
PAGE_HEADERS: Final = {
    "Content-Security-Policy": f"{html.policy()}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@router.get(
    "/v1/erasure-requests/{erasure_id}/certificate/page",
    response_class=Response,
    responses={
        200: {"description": "One HTML file, with the certificate and its verification inside.", **_HTML},
        **problems(*_ALWAYS),
    },
)
async def get_certificate_page(erasure_id: UUID, caller: Follower) -> Response:
    """The certificate for people: the verdict, what is guaranteed and what is not, what was touched, the audit. The
    page works without network, and says what it proves only with a fingerprint from elsewhere."""
    certified = await certified_by(caller, erasure_id)
    root = artefact_root(certified.envelope)
    files = caller.coordinator.erasure_steps.certificates.files
    path = files.list_path(certified.request_id, root) if root is not None else None
    try:
        keys = await asyncio.to_thread(caller.coordinator.signing_keys.public_keys)
        page = await asyncio.to_thread(page_of, certified.envelope, b"".join(map(public_pem, keys)), path)
    except KeyUnreadable as error:
        raise NotReady(described(error)) from error
    return Response(page, media_type=html.MEDIA_TYPE, headers={**PAGE_HEADERS, "Cache-Control": "no-store"})


@router.get("/verify.html", include_in_schema=False)
async def get_verify_page() -> Response:
    """Verifies certificates in the browser; needs no credential, and as a file no coordinator."""
    return Response(html.verify_page(), media_type=html.MEDIA_TYPE, headers=PAGE_HEADERS)


def page_of(envelope: bytes, keys: bytes, listed: Path | None) -> str:
    with contextlib.ExitStack() as stack:
        artefacts = stack.enter_context(listed.open("rb")) if listed is not None and listed.exists() else None
        try:
            reading = read(envelope, keys, "issuer", Beside(list=artefacts))
        except NotShown as invalid:
            raise InvariantBroken(str(invalid)) from invalid
    return html.certificate_page(content_of(reading), envelope, keys)
