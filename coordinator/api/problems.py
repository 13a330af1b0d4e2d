"""Errors as RFC 9457 problem documents: one table from the core's codes to HTTP, and the handlers that use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from coordinator.api.context import context_of
from coordinator.blobs.port import StorageFull
from coordinator.store.database import NotReady, Unavailable
from coordinator.store.faults import fault_of
from services.core.errors import CODES, Rejected
from services.core.tokens import hide_tokens
from services.wire.v1.resources import Problem

log = structlog.get_logger()
MEDIA_TYPE: Final = "application/problem+json"
_MOST_ERRORS: Final = 50
_LONGEST_TEXT: Final = 300


class ProblemType(NamedTuple):
    status: int
    title: str
    retryable: bool = False
    retry_after_s: int | None = None


PROBLEMS: Final[dict[str, ProblemType]] = {
    code: ProblemType(status, CODES[code], retry_after_s is not None, retry_after_s)
    for code, status, retry_after_s in (
        ("unauthenticated", 401, None),
        ("session-ended", 401, None),
        ("forbidden", 403, None),
        ("csrf-failed", 403, None),
        ("sign-in-failed", 403, None),
        ("client-removed", 403, None),
        ("client-erased", 403, None),
        ("four-eyes", 403, None),
        ("not-found", 404, None),
        ("method-not-allowed", 405, None),
        ("conflict", 409, None),
        ("name-taken", 409, None),
        ("lease-lost", 409, None),
        ("epoch-fenced", 409, None),
        ("ledger-behind", 409, None),
        ("round-closed", 409, None),
        ("too-stale", 409, None),
        ("already-submitted", 409, None),
        ("blob-missing", 409, None),
        ("no-task", 409, None),
        ("anothers-bytes", 409, None),
        ("upload-offset-mismatch", 409, None),
        ("precondition-failed", 412, None),
        ("idempotency-key-missing", 400, None),
        ("idempotency-key-reused", 422, None),
        ("protocol-too-old", 426, None),
        ("already-erased", 409, None),
        ("method-unavailable", 409, None),
        ("callback-refused", 422, None),
        ("superseded", 410, None),
        ("certificate-not-ready", 409, None),
        ("already-spent", 409, None),
        ("link-expired", 410, None),
        ("invalid-request", 422, None),
        ("invalid-run", 422, None),
        ("too-large", 413, None),
        ("not-safetensors", 415, None),
        ("digest-mismatch", 422, None),
        ("length-required", 411, None),
        ("wrong-layout", 422, None),
        ("not-finite", 422, None),
        ("out-of-bounds", 422, None),
        ("invalid-result", 422, None),
        ("range-not-satisfiable", 416, None),
        ("unsupported-media-type", 415, None),
        ("quota-exceeded", 413, None),
        ("storage-full", 507, 5),
        ("blob-damaged", 503, None),
        ("key-missing", 503, None),
        ("not-ready", 503, 2),
        ("unavailable", 503, 1),
        ("too-many-requests", 429, 1),
        ("malformed-request", 400, None),
        ("header-too-large", 431, None),
        ("request-timeout", 408, 1),
        ("internal", 500, None),
    )
}

_EVERYWHERE: Final = ("invalid-request", "internal", "unavailable", "not-ready", "too-many-requests", "request-timeout")
"""What every operation may answer."""
_CODE_OF_STATUS: Final = {401: "unauthenticated", 403: "forbidden", 404: "not-found", 405: "method-not-allowed"} | {
    413: "too-large",
    415: "unsupported-media-type",
}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of an operation that may answer with these, beside what every operation may answer."""
    found: dict[int | str, dict[str, Any]] = {}
    schema = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for code in (*codes, *_EVERYWHERE):
        known = found.setdefault(PROBLEMS[code].status, {"description": "", "content": schema})
        if f"`{code}`" not in known["description"]:
            known["description"] = ", ".join(filter(None, (known["description"], f"`{code}`")))
    return found


def problem(
    request: Request,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    errors: list[dict[str, Any]] | None = None,
) -> Response:
    """The answer, counted and logged."""
    kind = PROBLEMS[code]
    context_of(request).metrics.rejections.labels(code).inc()
    path, detail = hide_tokens(request.url.path), hide_tokens(detail)
    log.info("request.rejected", code=code, detail=detail[:_LONGEST_TEXT], method=request.method, path=path)
    all_headers = dict(headers or {})
    if kind.retry_after_s is not None:
        all_headers.setdefault("Retry-After", str(kind.retry_after_s))
    if kind.status == 401:
        all_headers["WWW-Authenticate"] = "Bearer"
    content = document(code, detail, path, errors)
    return Response(content, kind.status, headers=all_headers, media_type=MEDIA_TYPE)


def document(code: str, detail: str, instance: str, errors: list[dict[str, Any]] | None = None) -> str:
    kind = PROBLEMS[code]
    return Problem(
        type=f"/v1/problems/{code}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        instance=instance,
        code=code,
        retryable=kind.retryable,
        errors=errors,
    ).model_dump_json(exclude_none=True)


async def _on_rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, Rejected)
    headers = {}
    if "retry_after_s" in error.extra:
        headers["Retry-After"] = str(error.extra["retry_after_s"])
    if "offset" in error.extra:
        headers["Upload-Offset"] = str(error.extra["offset"])
    if error.code == "range-not-satisfiable" and "num_bytes" in error.extra:
        headers["Content-Range"] = f"bytes */{error.extra['num_bytes']}"
    return problem(request, error.code, error.detail, headers=headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Says what is wrong where, and repeats nothing of what was sent but the names of its fields."""
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    if any(fault["loc"] == ("header", "Idempotency-Key") and fault["type"] == "missing" for fault in faults):
        return problem(request, "idempotency-key-missing", "send an Idempotency-Key: a string new for each intent")
    errors = [
        {"loc": [hide_tokens(str(part))[:100] for part in fault["loc"]], "msg": _plain(fault), "type": fault["type"]}
        for fault in faults[:_MOST_ERRORS]
    ]
    where = "; ".join(f"{'.'.join(fault['loc'])}: {fault['msg']}" for fault in errors[:3])
    return problem(request, "invalid-request", f"the request does not fit its schema: {where}", errors=errors)


def _plain(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "union_tag_invalid":  # pydantic's own sentence repeats the tag that was sent
        return f"must be one of {fault['ctx']['expected_tags']}"
    return str(fault["msg"])[:_LONGEST_TEXT]


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODE_OF_STATUS.get(error.status_code, "invalid-request" if error.status_code < 500 else "internal")
    detail = f"there is nothing at {request.method} {request.url.path}" if code == "not-found" else str(error.detail)
    return problem(request, code, detail, headers=error.headers)


async def _on_not_ready(request: Request, error: Exception) -> Response:
    return problem(request, "not-ready", str(error))


async def _on_unavailable(request: Request, error: Exception) -> Response:
    log.warning("database.away", error=str(error)[:_LONGEST_TEXT])
    return problem(request, "unavailable", "the database cannot serve right now; try again")


async def _on_storage_full(request: Request, error: Exception) -> Response:
    log.error("storage.full", error=str(error)[:_LONGEST_TEXT])
    return problem(request, "storage-full", "the blob store is full; keep the result and try again")


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody is left to read it."""
    return Response(status_code=400)


async def answer_to_bug(request: Request, error: Exception) -> Response:
    if fault_of(error) is not None:  # of a blob store in the database, which does not know the difference
        return await _on_unavailable(request, error)
    return problem(request, "internal", "something broke here; the coordinator's log has the trace")


ANSWERS: Final[dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]] = {
    Rejected: _on_rejected,
    RequestValidationError: _on_invalid,
    HTTPException: _on_http,
    NotReady: _on_not_ready,
    Unavailable: _on_unavailable,
    StorageFull: _on_storage_full,
    ClientDisconnect: _on_disconnect,
}


def install(app: FastAPI) -> None:
    for kind, handler in ANSWERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, answer_to_bug)


async def answer_to(request: Request, error: Exception) -> Response:
    """The answer to one of the exceptions that have one, as the application would give it."""
    return await next(handler for kind, handler in ANSWERS.items() if isinstance(error, kind))(request, error)
