"""Blobs in and out: raw safetensors bodies under the digest of their bytes."""

from __future__ import annotations

import contextlib
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from coordinator.api.auth import Caller, Downloader, Uploader
from coordinator.api.blob_answers import MEDIA_TYPE, send_blob
from coordinator.api.bodies import answer
from coordinator.api.problems import problems
from coordinator.api.work import SUBMITTING, accepted_reply, submission_of
from coordinator.blobs.port import StorageFull
from coordinator.crashpoints import crashpoint
from coordinator.engine.messages import PauseRun, SubmitResult
from coordinator.runtime.storage import SMALL_BYTES
from coordinator.runtime.upload_receiver import Partial
from coordinator.runtime.uploads import UploadRequest
from coordinator.store import access_queries, accounts, read_permissions
from coordinator.store.read_permissions import ReadableBlob, WantedBytes
from services.core.digests import PATTERN
from services.core.errors import Rejected
from services.wire.v1.work import MOST_RESULT_BYTES, RESULT_HEADER, BlobInfo, Submission

router = APIRouter(prefix="/v1/blobs", tags=["blobs"])

PARTIAL_UPLOAD: Final = "application/partial-upload"
_MOST_BYTES: Final = 2**63 - 1
DigestPath = Annotated[str, Path(pattern=PATTERN, examples=["sha256:" + "0" * 64])]
FederationQuery = Annotated[
    UUID | None, Query(description="Whose blob; needed only by a credential that belongs to no federation.")
]
ByteCount = Annotated[int, Header(ge=0, le=_MOST_BYTES)]
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_ALWAYS: Final = ("unauthenticated", "forbidden", "client-removed", "client-erased", "not-found")
_UPLOAD: Final = (
    *_ALWAYS,
    "length-required",
    "too-large",
    "not-safetensors",
    "unsupported-media-type",
    "digest-mismatch",
    "no-task",
    "anothers-bytes",
    "superseded",
    "key-missing",
    "upload-offset-mismatch",
    "quota-exceeded",
    "storage-full",
)


TaskHeader = Annotated[
    UUID | None,
    Header(
        alias="Lethe-Task",
        description="Clients: the task that the upload is for; may be left out by one that holds a single task.",
    ),
]
ResultHeader = Annotated[
    str | None,
    Header(
        alias=RESULT_HEADER,
        max_length=MOST_RESULT_BYTES,
        description="Clients: a `Submission` as JSON, handed in with the update that is uploaded for `Lethe-Task`. "
        "The answer then has a `submission`, and nothing is left to submit.",
    ),
]


@router.put(
    "/{digest}",
    response_model=BlobInfo,
    status_code=201,
    responses={
        200: {"model": BlobInfo, "description": "It is here already; the body was not read."},
        **problems(*_UPLOAD, *SUBMITTING),
    },
    openapi_extra={"requestBody": {"required": True, "content": {MEDIA_TYPE: _BYTES}}},
)
async def put_blob(
    request: Request,
    digest: DigestPath,
    caller: Uploader,
    federation_id: FederationQuery = None,
    lethe_task: TaskHeader = None,
    lethe_result: ResultHeader = None,
) -> Response:
    """Upload a whole safetensors file: a client what it made for a task that it holds, an operator what a run names.
    When the connection breaks, what arrived stays and PATCH continues it. With `Lethe-Result` the update is handed in
    as well; the same request again gets the same `submission`."""
    result = None if lethe_result is None else _result(caller, lethe_task, digest, lethe_result)
    owner, total = await _owner(caller, federation_id), _announced_bytes(request)
    if total > caller.coordinator.settings.max_blob_bytes:
        raise _too_large(caller)
    wanted = UploadRequest(owner, caller.principal.client_id, lethe_task, digest, total)
    try:
        if total > SMALL_BYTES or "expect" in request.headers:  # else reading the body costs less than looking
            num_bytes = await _known_bytes(caller, wanted)
            if num_bytes is not None:
                return await _stored(caller, digest, num_bytes, 200, result)
        return await _receive(request, caller, wanted, offset=None, result=result)
    except Rejected as rejected:
        if result is None or rejected.code != "no-task":
            raise
        return await _stored(caller, digest, total, 200, result)  # handed in before; or the refusal says why not


@router.patch(
    "/{digest}",
    response_model=BlobInfo,
    status_code=201,
    responses={
        200: {"model": BlobInfo, "description": "It is here already; the body was not read."},
        204: {"description": "More is to come; `Upload-Offset` says from where."},
        **problems(*_UPLOAD),
    },
    openapi_extra={"requestBody": {"required": True, "content": {MEDIA_TYPE: _BYTES}}},
)
async def append_to_blob(
    request: Request,
    digest: DigestPath,
    caller: Uploader,
    upload_offset: ByteCount,
    upload_length: ByteCount,
    federation_id: FederationQuery = None,
    lethe_task: TaskHeader = None,
) -> Response:
    """Go on with an upload from the offset that HEAD gave. The body may also be of the type application/partial-upload,
    which other people's generators of clients do not know."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in (PARTIAL_UPLOAD, MEDIA_TYPE):
        raise Rejected("unsupported-media-type", f"a part of an upload is of the type {PARTIAL_UPLOAD} or {MEDIA_TYPE}")
    owner, announced = await _owner(caller, federation_id), _announced_bytes(request)
    if max(upload_length, upload_offset + announced) > caller.coordinator.settings.max_blob_bytes:
        raise _too_large(caller)
    wanted = UploadRequest(owner, caller.principal.client_id, lethe_task, digest, upload_length)
    num_bytes = await _known_bytes(caller, wanted)
    if num_bytes is not None:
        return answer(BlobInfo(digest=digest, bytes=num_bytes))
    return await _receive(request, caller, wanted, offset=upload_offset)


@router.head(
    "/{digest}",
    responses={
        200: {"description": "Complete: `Content-Length`, `ETag`, `Upload-Complete: ?1`."},
        204: {"description": "The caller's unfinished upload: `Upload-Offset`, `Upload-Complete: ?0`."},
        **problems(*_ALWAYS, "superseded", "key-missing"),
    },
)
async def head_blob(
    digest: DigestPath, caller: Downloader, federation_id: FederationQuery = None, lethe_task: TaskHeader = None
) -> Response:
    """Whether a blob is here, or how much of the caller's unfinished upload."""
    owner, coordinator = await _owner(caller, federation_id), caller.coordinator
    part = None
    with contextlib.suppress(Rejected):  # who holds no task has no upload under way
        part = await coordinator.uploads.find(UploadRequest(owner, caller.principal.client_id, lethe_task, digest, 0))
    if part is not None and part.status == "stored":
        found = ReadableBlob((part,))
    else:  # whether others have the same bytes is another question than whether the task has them
        found = await _readable(caller, owner, digest) if lethe_task is None else ReadableBlob()
    if found.blobs:
        headers = {"Content-Length": str(found.blobs[0].num_bytes), "ETag": f'"{digest}"', "Upload-Complete": "?1"}
        return Response(headers=headers, media_type=MEDIA_TYPE)
    offset = 0 if part is None else await coordinator.receiver.part_bytes(part)
    if not offset:
        raise _gone_or_missing(found, digest)
    return Response(status_code=204, headers={"Upload-Offset": str(offset), "Upload-Complete": "?0"})


@router.get(
    "/{digest}",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: _BYTES}, "description": "The whole blob."},
        206: {"content": {MEDIA_TYPE: _BYTES}, "description": "The range asked for."},
        304: {"description": "The caller has it."},
        **problems(*_ALWAYS, "superseded", "range-not-satisfiable", "key-missing", "blob-damaged"),
    },
)
async def get_blob(
    request: Request, digest: DigestPath, caller: Downloader, federation_id: FederationQuery = None
) -> Response:
    """Download. A client gets what it uploaded and the models of tasks that it holds."""
    owner = await _owner(caller, federation_id)
    found = await _readable(caller, owner, digest)
    if not found.blobs:
        raise _gone_or_missing(found, digest)
    blob = await caller.coordinator.storage.readable(found.blobs, are_newest=found.are_newest)
    return await send_blob(request, caller.context, blob)


# --- receiving --------------------------------------------------------------------------------------------------------


async def _receive(
    request: Request, caller: Caller, wanted: UploadRequest, *, offset: int | None, result: SubmitResult | None = None
) -> Response:
    """Take the body into the store, and note it when all of it is there, with the result that came with it. Without an
    offset the body is the whole."""
    context, sender = caller.context, caller.principal.name
    coordinator = context.coordinator
    new_bytes = 0 if offset else wanted.total  # all that was announced counts from the announcement on
    with context.limits.uploading(sender, wanted.federation_id), context.metrics.uploads.track_inprogress():
        async with (
            coordinator.quota.room(wanted.federation_id, wanted.client_id, new_bytes),
            coordinator.receiver.held(wanted.digest, wanted.total, request.stream(), offset) as body,
        ):
            blob = await coordinator.uploads.announce(wanted)
            if blob.status == "stored":  # whoever had sent it before
                return await _stored(caller, wanted.digest, blob.num_bytes, 201, result)
            try:
                received = await coordinator.receiver.receive(blob, wanted.total, body, offset)
            except StorageFull as error:
                await _pause_runs(caller, error)
                raise
    if isinstance(received, Partial):
        headers = {"Upload-Offset": str(received.offset), "Upload-Complete": "?0"}
        return Response(status_code=204, headers=headers)
    crashpoint("blob.before-record")
    submission = None
    if result is None:
        await coordinator.uploads.record(blob, received.inspection)
    else:
        accepted = await coordinator.uploads.record_and_submit(blob, received.inspection, result)
        submission = accepted_reply(accepted)
    return answer(BlobInfo(digest=wanted.digest, bytes=received.inspection.num_bytes, submission=submission), 201)


async def _stored(caller: Caller, digest: str, num_bytes: int, status: int, result: SubmitResult | None) -> Response:
    """The answer where the bytes were here before; their result may not be."""
    submission = None if result is None else accepted_reply(await caller.shell.handle(result))
    return answer(BlobInfo(digest=digest, bytes=num_bytes, submission=submission), status)


def _result(caller: Caller, task_id: UUID | None, digest: str, text: str) -> SubmitResult:
    """What a client hands in with its upload."""
    if caller.principal.client_id is None or task_id is None:
        raise Rejected("invalid-result", f"{RESULT_HEADER} is for clients, and goes with Lethe-Task")
    try:
        submission = Submission.model_validate_json(text)
    except ValidationError as error:
        found = [{**one, "loc": ("header", RESULT_HEADER, *one["loc"])} for one in error.errors()]
        raise RequestValidationError(found) from error
    if submission.update not in (None, digest):
        raise Rejected("invalid-result", f"{RESULT_HEADER} names another update than the one that is uploaded")
    if "\\u0000" in text:
        raise Rejected("invalid-result", f"{RESULT_HEADER} has a NUL in a name, which cannot be stored")
    return submission_of(caller, task_id, submission.model_copy(update={"update": digest}))


async def _pause_runs(caller: Caller, error: StorageFull) -> None:
    """Work whose results find no room stops, visibly; the clockwork resumes it when there is room again."""
    if caller.principal.client_id is None:
        return
    coordinator = caller.coordinator
    async with coordinator.database.read() as connection:
        run_ids = await access_queries.runs_waiting_for(connection, caller.principal.client_id)
    reason = f"the blob store is full: {error}; free some space and the run goes on by itself"
    for run_id in run_ids:
        with contextlib.suppress(Rejected):
            await coordinator.shell.handle(PauseRun(run_id, "storage-full", reason))


# --- whose, how large -------------------------------------------------------------------------------------------------


async def _owner(caller: Caller, federation_id: UUID | None) -> UUID:
    owner = caller.federation(federation_id)
    if caller.within is None:
        async with caller.database.read() as connection:
            await accounts.federation(connection, owner, None)
    return owner


async def _known_bytes(caller: Caller, wanted: UploadRequest) -> int | None:
    """The size of what the caller uploaded before; then its body need not be read. Nobody learns from an answer what
    others have sent. A model that is served need not be uploaded by an operator."""
    coordinator = caller.coordinator
    found = await coordinator.uploads.find(wanted)
    if found is not None and found.status == "stored":
        return found.num_bytes
    if wanted.client_id is not None:
        return None
    async with coordinator.database.read() as connection:
        model = await read_permissions.served_model(connection, wanted.federation_id, wanted.digest)
    return None if model is None else model.num_bytes


async def _readable(caller: Caller, owner: UUID, digest: str) -> ReadableBlob:
    if caller.principal.client_id is not None:
        return await caller.context.claim_probe.readable(WantedBytes(owner, digest, caller.principal.client_id))
    async with caller.database.read() as connection:
        return await read_permissions.for_operator(connection, owner, digest)


def _announced_bytes(request: Request) -> int:
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        raise Rejected("length-required", "announce the size in Content-Length; chunked encoding is not taken")
    return int(announced[:20])


def _too_large(caller: Caller) -> Rejected:
    limit = caller.coordinator.settings.max_blob_bytes
    return Rejected("too-large", f"a blob may have {limit} bytes here (LETHE_MAX_BLOB_BYTES)")


def _gone_or_missing(found: ReadableBlob, digest: str) -> Rejected:
    if found.taken_by is not None:
        return Rejected("superseded", f"erasure {found.taken_by} took these bytes out of use")
    return Rejected("not-found", f"there is no blob {digest} for this credential")
