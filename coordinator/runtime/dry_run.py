"""Whether a run could be started: everything that the start looks at, without starting it.

The message is decided on a slice of the database that is thrown away, as erasures are previewed, so that both are
refused for the same reasons.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

from coordinator.engine.decide import decide
from coordinator.engine.entities import Blob, Facts
from coordinator.engine.messages import CreateRun, Envelope
from coordinator.runtime.blob_sealer import operators_blob
from coordinator.runtime.storage import Storage
from coordinator.store.database import Database
from coordinator.store.slices import load
from services.core.errors import Rejected
from services.models.fitting import check_init, check_validation
from services.models.spec import validate
from services.tensors.layout import LENGTH_BYTES, Layout, parse_header, parse_length
from services.wire.v1.resources import RunValidation
from services.wire.v1.runs import RunSpec


async def dry_run(
    database: Database, storage: Storage, request: CreateRun, to_upload: Collection[str], max_parameters: int
) -> RunValidation:
    """`to_upload`: digests that need not be stored yet; `max_parameters`: of a built-in model."""
    async with database.read() as connection:  # its locks go with it: nothing on it is kept
        now = await database.now(connection)
        state = await load(connection, [request])
    state = state.put_all(
        replace(operators_blob(request.federation_id, now, digest, 0), status="stored") for digest in to_upload
    )
    unknown = {(request.federation_id, digest) for digest in to_upload} - state.rows("facts").keys()
    state = state.with_rows({"facts": dict.fromkeys(unknown, Facts(0, "", "", finite=True))})
    decided = decide(state, Envelope(request, now, os.urandom(16))).state
    await check_files(storage, request.federation_id, request.spec, max_parameters)
    run = decided.runs[request.run_id]
    return RunValidation(
        num_clients=run.num_clients,
        num_cohorts=sum(cohort.run_id == run.id and cohort.kind != "merge" for cohort in decided.cohorts.values()),
        rounds_planned=run.spec.stop.rounds,
    )


async def check_files(storage: Storage, federation_id: UUID, spec: RunSpec, max_parameters: int) -> None:
    """Refuse a model that nobody can build, and stored files that do not fit it. What is not stored is passed over."""
    validate(spec.model, max_parameters)
    if spec.init is not None and (layout := await _layout(storage, federation_id, spec.init)):
        check_init(spec.model, layout)
    if spec.validation.data is not None and (layout := await _layout(storage, federation_id, spec.validation.data)):
        check_validation(layout)


async def _layout(storage: Storage, federation_id: UUID, digest: str) -> Layout | None:
    """None: it is not stored."""
    try:
        blob = (await storage.find(federation_id, [digest])).get(digest)
        if blob is None:
            return None
        length = parse_length(await _read(storage, blob, 0, LENGTH_BYTES), blob.num_bytes)
        header = await _read(storage, blob, LENGTH_BYTES, LENGTH_BYTES + length)
    except Rejected as rejection:
        if rejection.code == "not-found":  # deleted meanwhile
            return None
        raise
    return parse_header(header, blob.num_bytes).layout


async def _read(storage: Storage, blob: Blob, start: int, end: int) -> bytes:
    return b"".join([piece async for piece in storage.pieces(blob, start, end)])
