"""Signing in with a browser: a token is exchanged for cookies, which are worth what the token is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fastapi import APIRouter, Request, Response

from coordinator.api import cookies
from coordinator.api.auth import Caller, Follower, peer_of
from coordinator.api.bodies import StrangersRoute, answer
from coordinator.api.context import context_of
from coordinator.api.me import me
from coordinator.api.problems import problems
from services.core.errors import Rejected
from services.wire.v1.people import Me
from services.wire.v1.signin import BrowserSessionCreate

router = APIRouter(prefix="/v1", tags=["signing in"])
strangers = APIRouter(prefix="/v1", tags=["signing in"], route_class=StrangersRoute)
_ALWAYS: Final = ("unauthenticated", "session-ended", "forbidden", "client-removed")


@strangers.post(
    "/browser-session",
    status_code=201,
    response_model=Me,
    responses=problems("unauthenticated", "client-removed", "too-large", "unsupported-media-type"),
)
async def begin_browser_session(request: Request, body: BrowserSessionCreate) -> Response:
    """Exchange a token for two cookies: `__Host-lethe` (without TLS `lethe`), which no script can read, and
    `lethe-csrf`, whose value every change has to send as `X-CSRF-Token`."""
    context = context_of(request)
    principal = await context.authenticator.principal(body.token.get_secret_value())
    if principal.is_removed:
        raise Rejected("client-removed", f"client {principal.client_name} was removed")
    coordinator, caller = context.coordinator, Caller(principal, context, peer_of(request))
    opened = await coordinator.browser_sessions.begin(caller.actor, caller.within)
    ends_at = min(filter(None, (opened.ends_at, principal.ends_at)))
    whose = replace(caller, principal=replace(principal, is_session=True, ends_at=ends_at))
    response = answer(me(whose), 201, {"Cache-Control": "no-store"})
    cookies.set_session(response, request, coordinator.settings, opened)
    return response


@router.get("/browser-session", response_model=Me, responses=problems(*_ALWAYS))
async def get_browser_session(request: Request, caller: Follower) -> Response:
    """Who is signed in, and until when at the latest."""
    _cookie(request, caller)
    return answer(me(caller), headers={"Cache-Control": "no-store"})


@router.delete(
    "/browser-session", status_code=204, response_class=Response, responses=problems(*_ALWAYS, "csrf-failed")
)
async def end_browser_session(request: Request, caller: Follower) -> Response:
    """Sign out."""
    await caller.coordinator.browser_sessions.end(_cookie(request, caller), caller.actor, caller.within)
    caller.context.authenticator.forget([caller.principal.credential_id])
    response = Response(status_code=204)
    cookies.drop_session(response, request, caller.coordinator.settings)
    return response


def _cookie(request: Request, caller: Caller) -> str:
    cookie = cookies.session_cookie(request, caller.coordinator.settings)
    if cookie is None or not caller.principal.is_session:
        raise Rejected("unauthenticated", "this request came with a token, not with a browser's session")
    return cookie
