"""Checkpoints: metadata, lineage, the model itself."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import orjson
from fastapi import APIRouter, Query, Request, Response

from coordinator.api.auth import Caller, Reader
from coordinator.api.blob_answers import MEDIA_TYPE, send_blob
from coordinator.api.bodies import WantedPage, answer, answer_page
from coordinator.api.problems import problems
from coordinator.store import lineage, lineage_edges, queries
from services.core.errors import Rejected
from services.wire.v1.resources import Checkpoint, Lineage, Page
from services.wire.v1.views import LineageEdges

router = APIRouter(prefix="/v1", tags=["checkpoints"])
_PROBLEMS: Final = problems("unauthenticated", "forbidden", "not-found")
_BYTES: Final = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
_DESCENT_CACHED_S: Final = 600.0


@router.get("/runs/{run_id}/checkpoints", response_model=Page[Checkpoint], responses=_PROBLEMS)
async def list_checkpoints(request: Request, run_id: UUID, caller: Reader, position: WantedPage) -> Response:
    async with caller.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)
        page = await lineage.checkpoints(connection, run_id, position)
    return answer_page(request, page)


@router.get("/checkpoints/{checkpoint_id}", response_model=Checkpoint, responses=_PROBLEMS)
async def get_checkpoint(checkpoint_id: UUID, caller: Reader) -> Response:
    async with caller.database.read() as connection:
        found = await lineage.checkpoint(connection, checkpoint_id, caller.within)
    return answer(found.checkpoint)


@router.get("/checkpoints/{checkpoint_id}/lineage", response_model=Lineage, responses=_PROBLEMS)
async def get_lineage(checkpoint_id: UUID, caller: Reader) -> Response:
    """Whose data is in this model, and with which weights it got there. Readable also when the model is superseded."""
    async with caller.database.read() as connection:
        found = await lineage.checkpoint(connection, checkpoint_id, caller.within)
        base_id = found.checkpoint.base_id
        base = await lineage.checkpoint(connection, base_id, caller.within) if base_id is not None else None
        contributions = await lineage.contributions(connection, checkpoint_id)
        parents = await lineage.parents(connection, checkpoint_id)
    descent = await _descent(caller, checkpoint_id)
    return answer(
        Lineage(
            checkpoint=found.checkpoint,
            base=base.checkpoint if base is not None else None,
            scale=found.scale,
            quantum=found.quantum,
            contributions=contributions,
            parents=parents,
            made_by=found.made_by(len(parents)),
            ancestors=descent.ancestors,
            clients=descent.clients,
        )
    )


@router.get("/checkpoints/{checkpoint_id}/lineage/edges", response_model=LineageEdges, responses=_PROBLEMS)
async def get_lineage_edges(
    checkpoint_id: UUID,
    caller: Reader,
    depth: Annotated[int, Query(ge=1, le=1000, description="So many steps back.")] = 10,
    client: Annotated[UUID | None, Query(description="Only updates of this client.")] = None,
) -> Response:
    """The models behind this one and the updates in each, as nodes and edges."""
    async with caller.database.read() as connection:
        await lineage.checkpoint(connection, checkpoint_id, caller.within)
        return answer(await lineage_edges.edges(connection, checkpoint_id, depth, client))


@router.get(
    "/checkpoints/{checkpoint_id}/model",
    response_class=Response,
    responses={
        200: {"content": _BYTES, "description": "The whole model as safetensors."},
        206: {"content": _BYTES, "description": "The range asked for."},
        304: {"description": "The caller has it."},
        **problems(
            "unauthenticated",
            "forbidden",
            "not-found",
            "superseded",
            "range-not-satisfiable",
            "key-missing",
            "blob-damaged",
        ),
    },
)
async def download_model(request: Request, checkpoint_id: UUID, caller: Reader) -> Response:
    async with caller.database.read() as connection:
        found = await lineage.checkpoint(connection, checkpoint_id, caller.within)
    checkpoint = found.checkpoint
    if checkpoint.superseded_by is not None:
        raise Rejected("superseded", f"erasure {checkpoint.superseded_by} superseded this model; use its cohort's head")
    blobs = await caller.coordinator.storage.find(found.federation_id, [checkpoint.digest])
    if checkpoint.digest not in blobs:
        raise Rejected("not-found", f"the bytes of model {checkpoint_id} are not stored any more")
    return await send_blob(request, caller.context, blobs[checkpoint.digest])


async def _descent(caller: Caller, checkpoint_id: UUID) -> lineage.Descent:
    """Read through the cache: a long lineage takes a walk over all its checkpoints, and never changes."""
    coordinator, key = caller.coordinator, f"descent:{checkpoint_id}"
    cached = await coordinator.bus.cache_get(key)
    if cached is not None:
        found = orjson.loads(cached)
        return lineage.Descent([UUID(ancestor) for ancestor in found["ancestors"]], found["clients"])
    async with coordinator.database.read() as connection:
        descent = await lineage.descent(connection, checkpoint_id)
    plain = {"ancestors": [str(ancestor) for ancestor in descent.ancestors], "clients": descent.clients}
    await coordinator.bus.cache_set(key, orjson.dumps(plain), _DESCENT_CACHED_S)
    return descent
