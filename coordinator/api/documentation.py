"""The documentation of the API for people, from files that come with the package."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request, Response

from services.core.errors import Rejected

router = APIRouter(include_in_schema=False)
_MEDIA_TYPES: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "start.js": "text/javascript",
}
_POLICY: Final = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
_HEADERS: Final = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lethe: the API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<noscript>This page needs JavaScript; <a href="/v1/openapi.json">/v1/openapi.json</a> describes the API, too.</noscript>
<div id="docs"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""


@router.get("/docs")
async def show_docs() -> Response:
    return Response(_PAGE, media_type="text/html", headers=_HEADERS)


@router.get("/docs/{name}")
async def get_asset(request: Request, name: str) -> Response:
    if name not in _MEDIA_TYPES:
        raise Rejected("not-found", "there is no such page; the API's documentation is at /docs")
    content, headers = _compressed(name), {**_HEADERS, "Cache-Control": "max-age=3600", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        content = gzip.decompress(content)
    return Response(content, media_type=_MEDIA_TYPES[name], headers=headers)


@cache
def _compressed(name: str) -> bytes:
    folder = files("coordinator.api").joinpath("docs_assets")
    packed = folder.joinpath(f"{name}.gz")
    return packed.read_bytes() if packed.is_file() else gzip.compress(folder.joinpath(name).read_bytes(), mtime=0)
