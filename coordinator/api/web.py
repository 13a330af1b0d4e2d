"""The dashboard, from files that come with the package: nothing is built, and nothing is loaded from elsewhere.

Scripts and styles have names that change with their content and are kept compressed. Every address that a person opens
and that is nothing else's is the same page; the script in it decides what to show.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from services.core.errors import Rejected

_OTHERS: Final = frozenset({"v1", "docs", "metrics", "healthz", "readyz", "openapi.json"})
"""Beginnings of addresses that are not the dashboard's."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}
_ENCODINGS: Final = {"br": "br", "gzip": "gz"}
"""Best first: as requests name them, and as the files' names end."""


class _Page(APIRoute):
    """What another room of the API may answer is left to it, also a method that it does not have."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and scope["path"].split("/", 2)[1] in _OTHERS:
            return Match.NONE, {}
        return super().matches(scope)


router = APIRouter(include_in_schema=False)
pages = APIRouter(include_in_schema=False, route_class=_Page)


@router.get("/assets/{name}")
async def get_dashboard_asset(request: Request, name: str) -> Response:
    media_type = _MEDIA_TYPES.get("." + name.rpartition(".")[2])
    if media_type is None or name not in _names():
        raise Rejected("not-found", "there is no such file; a page from before an upgrade has to be loaded again")
    accepted = request.headers.get("accept-encoding", "")
    headers = {**_HEADERS, "Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    for encoding, ending in _ENCODINGS.items():
        if encoding in accepted:
            headers["Content-Encoding"] = encoding
            return Response(_file(f"{name}.{ending}"), media_type=media_type, headers=headers)
    return Response(gzip.decompress(_file(f"{name}.gz")), media_type=media_type, headers=headers)


@pages.get("/")
@pages.get("/{path:path}")
async def show_dashboard(request: Request, path: str = "") -> Response:
    if path and "text/html" not in request.headers.get("accept", ""):
        raise Rejected("not-found", "there is no such address; the API's documentation is at /docs")
    headers = {**_HEADERS, "Cache-Control": "no-cache", "Vary": "Accept"}
    return Response(_file("index.html"), media_type="text/html", headers=headers)


def _folder() -> Any:
    return files("coordinator.api").joinpath("dashboard")


@cache
def _names() -> frozenset[str]:
    return frozenset(one.name.removesuffix(".gz") for one in _folder().iterdir() if one.name.endswith(".gz"))


@cache
def _file(name: str) -> bytes:
    content: bytes = _folder().joinpath(name).read_bytes()
    return content
