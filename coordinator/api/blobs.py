"""Blobs in and out: raw safetensors bodies under the digest of their bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request, Response

from coordinator.api.auth import Caller, Downloader, Uploader
from coordinator.api.blob_answers import MEDIA_TYPE, SMALL_BYTES, send_blob
from coordinator.api.bodies import answer
from coordinator.api.problems import problems
from coordinator.blobs.port import Complete, Partial, Received, StorageFull
from coordinator.crashpoints import crashpoint
from coordinator.engine.messages import PauseRun, RecordBlob
from coordinator.runtime.quota import Upload
from coordinator.runtime.uploads import record_upload
from coordinator.store import accounts, doorway
from services.core.digests import PATTERN
from services.core.errors import Rejected
from services.tensors.layout import REMEMBERED_TENSORS, Layout
from services.wire.v1.work import BlobInfo

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
_UPLOAD: Final = problems(
    *_ALWAYS,
    "length-required",
    "too-large",
    "not-safetensors",
    "unsupported-media-type",
    "digest-mismatch",
    "upload-offset-mismatch",
    "quota-exceeded",
    "storage-full",
)


@router.put(
    "/{digest}",
    response_model=BlobInfo,
    status_code=201,
    responses={200: {"model": BlobInfo, "description": "The caller may read it already; the body was not."}, **_UPLOAD},
    openapi_extra={"requestBody": {"required": True, "content": {MEDIA_TYPE: _BYTES}}},
)
async def put_blob(
    request: Request, digest: DigestPath, caller: Uploader, federation_id: FederationQuery = None
) -> Response:
    """Upload a whole safetensors file. When the connection breaks, what arrived stays and PATCH continues it."""
    owner, total = await _owner(caller, federation_id), _announced_bytes(request)
    if total > caller.context.coordinator.settings.max_blob_bytes:
        raise _too_large(caller)
    if total > SMALL_BYTES or "expect" in request.headers:  # else reading the body costs less than looking
        num_bytes = await _known_bytes(caller, owner, digest)
        if num_bytes is not None:
            return answer(BlobInfo(digest=digest, bytes=num_bytes))
    try:
        received = await _receive(request, caller, owner, digest, offset=0, total=total)
    except Rejected as rejected:
        if rejected.code != "upload-offset-mismatch":
            raise
        stored = rejected.extra["offset"]
        received = await _continue_with_whole(request, caller, owner, digest, stored=stored, total=total)
    return await _record(caller, owner, digest, received)


@router.patch(
    "/{digest}",
    response_model=BlobInfo,
    status_code=201,
    responses={
        200: {"model": BlobInfo, "description": "The caller may read it already; the body was not."},
        204: {"description": "More is to come; `Upload-Offset` says from where."},
        **_UPLOAD,
    },
    openapi_extra={"requestBody": {"required": True, "content": {PARTIAL_UPLOAD: _BYTES}}},
)
async def append_to_blob(
    request: Request,
    digest: DigestPath,
    caller: Uploader,
    upload_offset: ByteCount,
    upload_length: ByteCount,
    federation_id: FederationQuery = None,
) -> Response:
    """Go on with an upload from the offset that HEAD gave."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != PARTIAL_UPLOAD:
        raise Rejected("unsupported-media-type", f"a part of an upload is of the type {PARTIAL_UPLOAD}")
    owner, announced = await _owner(caller, federation_id), _announced_bytes(request)
    if max(upload_length, upload_offset + announced) > caller.context.coordinator.settings.max_blob_bytes:
        raise _too_large(caller)
    num_bytes = await _known_bytes(caller, owner, digest)
    if num_bytes is not None:
        return answer(BlobInfo(digest=digest, bytes=num_bytes))
    received = await _receive(request, caller, owner, digest, offset=upload_offset, total=upload_length)
    return await _record(caller, owner, digest, received)


@router.head(
    "/{digest}",
    responses={
        200: {"description": "Complete: `Content-Length`, `ETag`, `Upload-Complete: ?1`."},
        204: {"description": "The caller's unfinished upload: `Upload-Offset`, `Upload-Complete: ?0`."},
        **problems(*_ALWAYS, "superseded"),
    },
)
async def head_blob(digest: DigestPath, caller: Downloader, federation_id: FederationQuery = None) -> Response:
    """Whether a blob is here, or how much of the caller's unfinished upload."""
    owner, blobs = await _owner(caller, federation_id), caller.context.coordinator.blobs
    if (num_bytes := await _readable_bytes(caller, owner, digest)) is not None and await blobs.stat(
        owner, digest
    ) is not None:
        headers = {"Content-Length": str(num_bytes), "ETag": f'"{digest}"', "Upload-Complete": "?1"}
        return Response(headers=headers, media_type=MEDIA_TYPE)
    offset = await blobs.part_size(owner, digest, caller.principal.name)
    if offset is None:
        raise _not_found(digest)
    return Response(status_code=204, headers={"Upload-Offset": str(offset), "Upload-Complete": "?0"})


@router.get(
    "/{digest}",
    response_class=Response,
    responses={
        200: {"content": {MEDIA_TYPE: _BYTES}, "description": "The whole blob."},
        206: {"content": {MEDIA_TYPE: _BYTES}, "description": "The range asked for."},
        304: {"description": "The caller has it."},
        **problems(*_ALWAYS, "superseded", "range-not-satisfiable"),
    },
)
async def get_blob(
    request: Request, digest: DigestPath, caller: Downloader, federation_id: FederationQuery = None
) -> Response:
    """Download. A client gets what it uploaded and the models of tasks that it holds."""
    owner = await _owner(caller, federation_id)
    num_bytes = await _readable_bytes(caller, owner, digest)
    if num_bytes is None:
        raise _not_found(digest)
    return await send_blob(request, caller.context, owner, digest, num_bytes)


# --- receiving --------------------------------------------------------------------------------------------------------


async def _continue_with_whole(
    request: Request, caller: Caller, owner: UUID, digest: str, *, stored: int, total: int
) -> Received:
    """An earlier upload left its first part here: use of the new one, which starts at 0, what follows that part."""
    try:
        rest = _rest(request, stored)
        return await _receive(request, caller, owner, digest, offset=stored, total=total, chunks=rest)
    except Rejected as rejected:
        if rejected.code in ("digest-mismatch", "not-safetensors", "too-large"):  # whose fault it was cannot be known
            detail = "what an earlier upload had left did not fit and was dropped; send everything again"
            raise Rejected("upload-offset-mismatch", detail, offset=0) from rejected
        raise


async def _receive(
    request: Request,
    caller: Caller,
    owner: UUID,
    digest: str,
    *,
    offset: int,
    total: int,
    chunks: AsyncIterator[bytes] | None = None,
) -> Received:
    """Take the body into the store."""
    context, sender = caller.context, caller.principal.name
    wanted = max(0, total - offset)
    upload = Upload(owner, caller.principal.client_id, sender, wanted, min(wanted, _announced_bytes(request)))
    with context.limits.uploading(sender, owner), context.metrics.uploads.track_inprogress():
        async with context.coordinator.quota.room(upload) as room:
            try:
                received = await context.coordinator.blobs.receive(
                    owner,
                    digest,
                    sender=sender,
                    offset=offset,
                    total=total,
                    chunks=chunks if chunks is not None else request.stream(),
                )
            except StorageFull as error:
                await _pause_runs(caller, error)
                raise
            room.is_used = not (isinstance(received, Complete) and received.existed)
            return received


async def _record(caller: Caller, owner: UUID, digest: str, received: Received) -> Response:
    """Note what was received, if all of it was."""
    match received:
        case Partial(offset=stored):
            return Response(status_code=204, headers={"Upload-Offset": str(stored), "Upload-Complete": "?0"})
        case Complete(inspection=inspection, num_bytes=num_bytes):
            crashpoint("blob.before-record")
            layout_digest, updatable_digest = await _digests_of(inspection.layout)
            record = RecordBlob(
                federation_id=owner,
                digest=digest,
                num_bytes=num_bytes,
                layout_digest=layout_digest,
                updatable_digest=updatable_digest,
                finite=inspection.finite,
                uploaded_by=caller.principal.client_id,
            )
            await record_upload(caller.context.coordinator, record)
            return answer(BlobInfo(digest=digest, bytes=num_bytes), 201)  # whoever had sent it before


async def _digests_of(layout: Layout) -> tuple[str, str]:
    """Of the layout, and of that of updates to it: in a thread when there is much to do."""

    def both() -> tuple[str, str]:
        return layout.digest(), layout.updatable().digest()

    return both() if len(layout.tensors) <= REMEMBERED_TENSORS else await asyncio.to_thread(both)


async def _rest(request: Request, num_skipped: int) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if num_skipped < len(chunk):
            yield chunk[num_skipped:]
        num_skipped = max(0, num_skipped - len(chunk))


async def _pause_runs(caller: Caller, error: StorageFull) -> None:
    """Work whose results find no room stops, visibly; the clockwork resumes it when there is room again."""
    if caller.principal.client_id is None:
        return
    coordinator = caller.context.coordinator
    async with coordinator.database.read() as connection:
        run_ids = await doorway.runs_waiting_for(connection, caller.principal.client_id)
    reason = f"the blob store is full: {error}; free some space and the run goes on by itself"
    for run_id in run_ids:
        with contextlib.suppress(Rejected):
            await coordinator.shell.handle(PauseRun(run_id, "storage-full", reason))


# --- whose, how large -------------------------------------------------------------------------------------------------


async def _owner(caller: Caller, federation_id: UUID | None) -> UUID:
    owner = caller.federation(federation_id)
    if caller.within is None:
        async with caller.context.coordinator.database.read() as connection:
            await accounts.federation(connection, owner, None)
    return owner


async def _known_bytes(caller: Caller, owner: UUID, digest: str) -> int | None:
    """The size of a blob that is stored and that the caller may know of; then its body need not be read. Nobody learns
    from an answer what others have sent, and what only a client uploaded is recorded again for an operator: it is the
    federation's from then on."""
    coordinator, client_id = caller.context.coordinator, caller.principal.client_id
    if await coordinator.blobs.stat(owner, digest) is None:
        return None
    async with coordinator.database.read() as connection:
        if client_id is None:
            return await doorway.bytes_of_federation(connection, owner, digest)
        return await doorway.bytes_for_client(connection, owner, digest, client_id)


async def _readable_bytes(caller: Caller, owner: UUID, digest: str) -> int | None:
    client_id = caller.principal.client_id
    async with caller.context.coordinator.database.read() as connection:
        if client_id is None:
            erasure_id = await doorway.superseded_by(connection, owner, digest)
            if erasure_id is not None:
                raise Rejected("superseded", f"erasure {erasure_id} superseded the model with these bytes")
            return await doorway.recorded_bytes(connection, owner, digest)
        return await doorway.bytes_for_client(connection, owner, digest, client_id)


def _announced_bytes(request: Request) -> int:
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        raise Rejected("length-required", "announce the size in Content-Length; chunked encoding is not taken")
    return int(announced[:20])


def _too_large(caller: Caller) -> Rejected:
    limit = caller.context.coordinator.settings.max_blob_bytes
    return Rejected("too-large", f"a blob may have {limit} bytes here (LETHE_MAX_BLOB_BYTES)")


def _not_found(digest: str) -> Rejected:
    return Rejected("not-found", f"there is no blob {digest} for this credential")
