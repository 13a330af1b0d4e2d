"""Signing in with OpenID Connect: to the provider, and back with cookies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from coordinator.api import cookies
from coordinator.api.auth import peer_of
from coordinator.api.bodies import StrangersRoute, answer
from coordinator.api.context import context_of
from coordinator.api.problems import problems
from services.core.errors import Rejected
from services.wire.message import Name
from services.wire.v1.signin import OpenIdInfo

if TYPE_CHECKING:
    from coordinator.runtime.openid import OpenId

router = APIRouter(prefix="/v1/openid", tags=["signing in"], route_class=StrangersRoute)
COOKIE: Final = "lethe-openid"
PENDING_S: Final = 600
"""How long somebody may take at the provider."""
_NO_STORE: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


@router.get("", response_model=OpenIdInfo, responses=problems())
async def get_openid(request: Request) -> Response:
    """Whether people can sign in with OpenID Connect here, and what the installation calls it."""
    coordinator = context_of(request).coordinator
    enabled = coordinator.openid is not None
    return answer(OpenIdInfo(enabled=enabled, name=coordinator.settings.openid_name if enabled else None))


# Addresses for browsers to go to, not operations for programs.


@router.get("/start", include_in_schema=False)
async def start_sign_in(
    request: Request,
    return_to: Annotated[str, Query(max_length=1000)] = "/",
    federation: Annotated[Name | None, Query()] = None,
) -> Response:
    """Of somebody whose groups have roles in several federations, `federation` says which one they mean."""
    settings = context_of(request).coordinator.settings
    url, kept = await _openid(request).start(return_to, federation)
    response = RedirectResponse(url, 303, headers=_NO_STORE)
    # Lax: the browser comes back from another site.
    secure = cookies.is_secure(request, settings)
    name = cookies.name_of(COOKIE, request, settings)
    response.set_cookie(name, kept, PENDING_S, secure=secure, httponly=True, samesite="lax")
    return response


@router.get("/callback", include_in_schema=False)
async def finish_sign_in(request: Request) -> Response:
    openid, coordinator = _openid(request), context_of(request).coordinator
    name = cookies.name_of(COOKIE, request, coordinator.settings)
    kept = request.cookies.get(name)
    if kept is None:
        raise Rejected(
            "sign-in-failed", "this browser did not begin to sign in here, or more than ten minutes ago; begin again"
        )
    person = await openid.finish(kept, dict(request.query_params), peer_of(request))
    opened = await coordinator.browser_sessions.begin(person.actor, person.federation_id)
    response = RedirectResponse(person.return_to, 303, headers=_NO_STORE)
    cookies.set_session(response, request, coordinator.settings, opened)
    secure = cookies.is_secure(request, coordinator.settings)
    response.delete_cookie(name, secure=secure, httponly=True, samesite="lax")
    return response


def _openid(request: Request) -> OpenId:
    openid = context_of(request).coordinator.openid
    if openid is None:
        raise Rejected("not-found", "nobody signs in with OpenID Connect here: sign in with a token")
    return openid
