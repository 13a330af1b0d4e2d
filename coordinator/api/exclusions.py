"""Samples that a worker must leave out: it reads them, writes them to its ledger, and acknowledges."""

from __future__ import annotations

from fastapi import APIRouter, Response

from coordinator.api.auth import Worker
from coordinator.api.bodies import JsonRoute, answer
from coordinator.api.problems import problems
from coordinator.engine.messages import AcknowledgeExclusions
from coordinator.store import exclusions
from services.wire.v1.exclusions import Exclusions, ExclusionsAccepted, ExclusionsAcknowledgement

router = APIRouter(prefix="/v1/exclusions", tags=["work"], route_class=JsonRoute)
_ALWAYS = ("unauthenticated", "forbidden", "client-removed", "client-erased")


@router.get("", response_model=Exclusions, responses=problems(*_ALWAYS))
async def get_exclusions(caller: Worker) -> Response:
    """All samples that this client must leave out from now on."""
    async with caller.database.read() as connection:
        return answer(await exclusions.of_client(connection, caller.client_id))


@router.put(
    "/acknowledgement",
    response_model=ExclusionsAccepted,
    responses=problems(*_ALWAYS, "conflict", "too-large", "unsupported-media-type"),
)
async def acknowledge_exclusions(body: ExclusionsAcknowledgement, caller: Worker) -> Response:
    """Say that they are in the ledger, on disk. Tasks are handed out afterwards; each session has to say it again."""
    unknown = {one.erasure_id: one.samples for one in body.unknown}
    await caller.shell.handle(AcknowledgeExclusions(caller.client_id, body.digest, unknown, body.problem))
    return answer(ExclusionsAccepted(digest=body.digest))
