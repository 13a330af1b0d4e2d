"""Whether a run could be started: everything that the start looks at, without starting it.

The message is decided on a slice of the database that is thrown away, as erasures are previewed, so that both are
refused for the same reasons.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from coordinator.blobs.port import BlobStore
from coordinator.engine.decide import decide
from coordinator.engine.entities import Blob, State
from coordinator.engine.messages import CreateRun, Envelope
from coordinator.store.database import Database
from coordinator.store.slices import load
from services.core.errors import Rejected
from services.models.fitting import check_init, check_validation
from services.models.spec import validate
from services.tensors.layout import LENGTH_BYTES, Layout, parse_header, parse_length
from services.wire.v1.resources import RunValidation
from services.wire.v1.runs import RunSpec


async def rehearse(
    database: Database, blobs: BlobStore, request: CreateRun, to_upload: Collection[str], max_parameters: int
) -> RunValidation:
    """`to_upload`: digests that need not be stored yet; `max_parameters`: of a built-in model."""
    async with database.read() as connection:  # its locks go with it: nothing on it is kept
        now = await database.now(connection)
        state = await load(connection, [request], State())
    state = state.put_all(_promised(request.federation_id, digest, now) for digest in to_upload)
    decided = decide(state, Envelope(request, now, os.urandom(16))).state
    await check_files(blobs, request.federation_id, request.spec, max_parameters)
    run = decided.runs[request.run_id]
    return RunValidation(
        num_clients=run.num_clients,
        num_cohorts=sum(cohort.run_id == run.id and cohort.kind != "merge" for cohort in decided.cohorts.values()),
        rounds_planned=run.spec.stop.rounds,
    )


async def check_files(blobs: BlobStore, federation_id: UUID, spec: RunSpec, max_parameters: int) -> None:
    """Refuse a model that nobody can build, and stored files that do not fit it. What is not stored is passed over."""
    validate(spec.model, max_parameters)
    if spec.init is not None and (layout := await _layout(blobs, federation_id, spec.init)):
        check_init(spec.model, layout)
    if spec.validation.data is not None and (layout := await _layout(blobs, federation_id, spec.validation.data)):
        check_validation(layout)


async def _layout(blobs: BlobStore, federation_id: UUID, digest: str) -> Layout | None:
    """None: it is not stored."""
    try:
        num_bytes = await blobs.stat(federation_id, digest)
        if num_bytes is None:
            return None
        length = parse_length(await _read(blobs, federation_id, digest, 0, LENGTH_BYTES), num_bytes)
        header = await _read(blobs, federation_id, digest, LENGTH_BYTES, LENGTH_BYTES + length)
    except Rejected as rejection:
        if rejection.code == "not-found":  # deleted meanwhile
            return None
        raise
    return parse_header(header, num_bytes).layout


async def _read(blobs: BlobStore, federation_id: UUID, digest: str, start: int, end: int) -> bytes:
    return b"".join([chunk async for chunk in blobs.open(federation_id, digest, start, end)])


def _promised(federation_id: UUID, digest: str, now: datetime) -> Blob:
    return Blob(federation_id, digest, 0, "", "", finite=True, created_at=now)
