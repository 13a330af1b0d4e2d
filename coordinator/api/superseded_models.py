"""Models that a worker must not keep: it reads which, drops them from its cache, and says so."""

from __future__ import annotations

from fastapi import APIRouter, Response

from coordinator.api.auth import Worker
from coordinator.api.bodies import JsonRoute, answer
from coordinator.api.problems import problems
from coordinator.runtime.worker_caches import note_dropped
from coordinator.store import worker_caches
from services.wire.v1.superseded_models import ModelsDropped, ModelsDroppedAccepted, SupersededModels

router = APIRouter(prefix="/v1/superseded-models", tags=["work"], route_class=JsonRoute)
_ALWAYS = ("unauthenticated", "forbidden", "client-removed", "client-erased")


@router.get("", response_model=SupersededModels, responses=problems(*_ALWAYS))
async def get_superseded_models(caller: Worker) -> Response:
    """Models that an erasure has superseded since this worker last said that it dropped all of them."""
    async with caller.database.read() as connection:
        return answer(await worker_caches.superseded(connection, caller.client_id))


@router.put(
    "/dropped",
    response_model=ModelsDroppedAccepted,
    responses=problems(*_ALWAYS, "too-large", "unsupported-media-type"),
)
async def confirm_dropped_models(body: ModelsDropped, caller: Worker) -> Response:
    """Say that none of them is in the cache any more. Certificates count who did; each session has to say it again."""
    await note_dropped(caller.database, caller.client_id, body.through)
    return answer(ModelsDroppedAccepted(through=body.through))
