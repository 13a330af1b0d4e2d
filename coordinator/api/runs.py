"""Runs: check, create, list, look, let clients join, recover, pause, resume, cancel."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response

from coordinator.api.auth import Caller, Operator, Reader
from coordinator.api.bodies import IfMatch, JsonRoute, WantedPage, answer, answer_page, expected_version
from coordinator.api.problems import problems
from coordinator.engine.erasure.stages import RecoveryWanted
from coordinator.engine.messages import CancelRun, CreateRun, JoinRun, PauseRun, RecoverRun, ResumeRun
from coordinator.runtime.dry_run import check_files, dry_run
from coordinator.runtime.set_aside import WorkItem
from coordinator.runtime.shell import Replayed
from coordinator.store import accounts, lineage, queries
from coordinator.store.acts import SealedAct
from coordinator.store.inbox import InboxKey
from services.core import digests
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.wire.v1.acts import ActAbout
from services.wire.v1.resources import Page, Run, RunCreate, RunJoin, RunRecover, RunStatus, RunValidate, RunValidation

router = APIRouter(prefix="/v1", tags=["runs"], route_class=JsonRoute)
_ALWAYS: Final = ("unauthenticated", "forbidden", "not-found")
_STEERING: Final = (*_ALWAYS, "conflict", "precondition-failed")


@router.post(
    "/runs:validate",
    response_model=RunValidation,
    responses=problems(*_ALWAYS, "invalid-run", "too-large", "unsupported-media-type"),
)
async def validate_run(body: RunValidate, caller: Operator) -> Response:
    """Whether a run with this body could be started now. Refused where the start would be; changes nothing."""
    coordinator = caller.coordinator
    federation_id = caller.federation(body.federation_id)
    async with coordinator.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        now = await coordinator.database.now(connection)
    message = CreateRun(uuid7(now, os.urandom(10)), federation_id, body.spec)
    most = coordinator.settings.max_model_parameters
    return answer(await dry_run(coordinator.database, coordinator.storage, message, body.to_upload, most))


@router.post(
    "/runs",
    status_code=201,
    response_model=Run,
    responses=problems(
        *_ALWAYS,
        "idempotency-key-missing",
        "idempotency-key-reused",
        "invalid-run",
        "too-large",
        "unsupported-media-type",
    ),
)
async def create_run(
    body: RunCreate,
    caller: Operator,
    idempotency_key: Annotated[
        str, Header(alias="Idempotency-Key", min_length=1, max_length=255, description="New for each intent.")
    ],
) -> Response:
    """Start training. The same key with the same body finds the run that the first request made."""
    coordinator = caller.coordinator
    federation_id = caller.federation(body.federation_id)
    await check_files(coordinator.storage, federation_id, body.spec, coordinator.settings.max_model_parameters)
    async with coordinator.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        now = await coordinator.database.now(connection)
    run_id = uuid7(now, os.urandom(10))
    inbox_key = InboxKey(
        principal=caller.principal.name,
        route="POST /v1/runs",
        key=idempotency_key,
        fingerprint=digests.of_json({**body.model_dump(mode="json"), "federation_id": str(federation_id)}),
        makes=run_id,
    )
    act = await caller.act("run.created", federation_id, ActAbout(kind="run", id=run_id))
    reply = await coordinator.shell.handle_once(CreateRun(run_id, federation_id, body.spec), inbox_key, act)
    if isinstance(reply, Replayed):
        run_id = reply.made
    return await _answer_run(caller, run_id, 201)


@router.get("/runs", response_model=Page[Run], responses=problems(*_ALWAYS))
async def list_runs(
    request: Request,
    caller: Reader,
    position: WantedPage,
    federation_id: UUID | None = None,
    status: Annotated[RunStatus | None, Query()] = None,
) -> Response:
    """Newest first."""
    within = federation_id if caller.within is None else caller.federation(federation_id)
    async with caller.database.read() as connection:
        page = await queries.runs(connection, within, status, position, partial(_leave_out, caller))
    return answer_page(request, page.model_copy(update={"items": [_explained(caller, run) for run in page.items]}))


@router.get("/runs/{run_id}", response_model=Run, responses=problems(*_ALWAYS))
async def get_run(run_id: UUID, caller: Reader) -> Response:
    return await _answer_run(caller, run_id)


@router.post(
    "/runs/{run_id}/members",
    response_model=Run,
    responses=problems(*_ALWAYS, "conflict", "already-erased", "too-large", "unsupported-media-type"),
)
async def join_run(run_id: UUID, body: RunJoin, caller: Operator) -> Response:
    """Let enrolled clients take part in a run that is running or paused, from its next round on. Sending it again
    changes nothing. Where clusters are made by measuring, a newcomer is measured first."""
    coordinator = caller.coordinator
    async with coordinator.database.read() as connection:
        run = await queries.run(connection, run_id, caller.within)
        whom = await accounts.client_ids(connection, run.federation_id, body.clients)
    act = await caller.act("run.joined", run.federation_id, ActAbout(kind="run", id=run_id), whom=whom)
    await coordinator.shell.handle(JoinRun(run_id, run.federation_id, tuple(body.clients)), act)
    return await _answer_run(caller, run_id)


@router.post(
    "/runs/{run_id}/recover",
    response_model=Run,
    responses=problems(*_STEERING, "method-unavailable", "superseded", "too-large", "unsupported-media-type"),
)
async def recover_run(run_id: UUID, body: RunRecover, caller: Operator, if_match: IfMatch = None) -> Response:
    """Make the run's next rounds those of a recovery. A completed run is opened again for them."""
    act = await _steering(caller, run_id, "run.recovery-began")
    compared_with = await _own_model(caller, run_id, body.compare_with) if body.compare_with is not None else None
    wanted = RecoveryWanted(body.recovery.method, body.recovery.params)
    message = RecoverRun(run_id, wanted, body.rounds, compared_with, expected_version(if_match))
    await caller.shell.handle(message, act)
    return await _answer_run(caller, run_id)


async def _own_model(caller: Caller, run_id: UUID, checkpoint_id: UUID) -> str:
    """The digest of a model of the run that may be read."""
    async with caller.database.read() as connection:
        found = (await lineage.checkpoint(connection, checkpoint_id, caller.within)).checkpoint
    if found.run_id != run_id:
        raise Rejected("not-found", f"run {run_id} has no checkpoint {checkpoint_id}")
    if found.superseded_by is not None:
        raise Rejected("superseded", f"erasure {found.superseded_by} superseded this model; compare with another")
    return found.digest


@router.post("/runs/{run_id}/pause", response_model=Run, responses=problems(*_STEERING))
async def pause_run(run_id: UUID, caller: Operator, if_match: IfMatch = None) -> Response:
    """Hand out no more work and compute nothing until it is resumed. What agents are doing counts."""
    message = PauseRun(run_id, "operator", "paused by an operator", expected_version(if_match))
    await caller.shell.handle(message, await _steering(caller, run_id, "run.paused"))
    return await _answer_run(caller, run_id)


@router.post("/runs/{run_id}/resume", response_model=Run, responses=problems(*_STEERING))
async def resume_run(run_id: UUID, caller: Operator, if_match: IfMatch = None) -> Response:
    """Go on with a paused run: failed tasks of its open round are handed out again. Or with one that failed, once the
    cause is gone: its cohorts go on from the models that they serve."""
    message = ResumeRun(run_id, expected_version(if_match))
    await caller.shell.handle(message, await _steering(caller, run_id, "run.resumed"))
    return await _answer_run(caller, run_id)


@router.post("/runs/{run_id}/cancel", response_model=Run, responses=problems(*_STEERING))
async def cancel_run(run_id: UUID, caller: Operator, if_match: IfMatch = None) -> Response:
    """End a run for good. Its checkpoints stay."""
    message = CancelRun(run_id, "cancelled by an operator", expected_version(if_match))
    await caller.shell.handle(message, await _steering(caller, run_id, "run.cancelled"))
    return await _answer_run(caller, run_id)


async def _steering(caller: Caller, run_id: UUID, name: str) -> SealedAct:
    async with caller.database.read() as connection:
        federation_id = await queries.require_run(connection, run_id, caller.within)
    return await caller.act(name, federation_id, ActAbout(kind="run", id=run_id))


async def _answer_run(caller: Caller, run_id: UUID, status: int = 200) -> Response:
    async with caller.database.read() as connection:
        run = _explained(caller, await queries.run(connection, run_id, caller.within))
    headers = {"ETag": f'"{run.version}"'}
    if status == 201:
        headers["Location"] = f"/v1/runs/{run.id}"
    return answer(run, status, headers)


def _explained(caller: Caller, run: Run) -> Run:
    """The run with what the coordinator had to set aside of it, where the run itself says nothing."""
    why = caller.coordinator.set_aside.why(run.id) if run.reason is None else None
    return run if why is None else run.model_copy(update={"reason": why})


def _leave_out(caller: Caller, run_id: UUID, error: Exception) -> None:
    caller.coordinator.set_aside.put(WorkItem("unreadable run", run_id, run_id), error)
