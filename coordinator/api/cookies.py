"""The cookies of a browser's session, and the check that a change was asked for by a page of this installation."""

from __future__ import annotations

import hmac
from typing import Final

from fastapi import Request, Response

from coordinator.runtime.browser_sessions import OpenedSession, csrf_of
from coordinator.runtime.settings import Settings
from services.core.errors import Rejected

CSRF_COOKIE: Final = "lethe-csrf"
CSRF_HEADER: Final = "X-CSRF-Token"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def is_secure(request: Request, settings: Settings) -> bool:
    """Whether the browser came over TLS, also if a proxy ends it."""
    return request.url.scheme == "https" or (settings.public_url or "").startswith("https:")


def name_of(cookie: str, request: Request, settings: Settings) -> str:
    """With the prefix that keeps other hosts from setting it; browsers take that over TLS alone."""
    return f"__Host-{cookie}" if is_secure(request, settings) else cookie


def session_cookie(request: Request, settings: Settings) -> str | None:
    return request.cookies.get(name_of("lethe", request, settings))


def set_session(response: Response, request: Request, settings: Settings, opened: OpenedSession) -> None:
    """They end with the browser, or when the coordinator says so: nothing depends on the browser's clock."""
    secure = is_secure(request, settings)
    name = name_of("lethe", request, settings)
    response.set_cookie(name, opened.cookie, secure=secure, httponly=True, samesite="strict")
    response.set_cookie(CSRF_COOKIE, opened.csrf, secure=secure, samesite="strict")


def drop_session(response: Response, request: Request, settings: Settings) -> None:
    secure = is_secure(request, settings)
    for name in (name_of("lethe", request, settings), CSRF_COOKIE):
        response.delete_cookie(name, secure=secure, samesite="strict")


def check_csrf(request: Request, cookie: str) -> None:
    """A page of another site can make a browser send its cookies, but can neither read them nor set this header."""
    if request.method in _SAFE:
        return
    shown = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(shown.encode(), csrf_of(cookie).encode()):
        raise Rejected("csrf-failed", f"send the header {CSRF_HEADER} with the value of the cookie {CSRF_COOKIE}")
