"""Runs: check, create, list, look, let clients join, pause, resume, cancel."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response

from coordinator.api.auth import Caller, Operator, Reader
from coordinator.api.bodies import IfMatch, JsonRoute, WantedPage, answer, answer_page, expected_version
from coordinator.api.problems import problems
from coordinator.engine.messages import CancelRun, CreateRun, JoinRun, PauseRun, ResumeRun
from coordinator.runtime.dry_run import check_files, dry_run
from coordinator.runtime.set_aside import WorkItem
from coordinator.runtime.shell import Replayed
from coordinator.store import accounts, queries
from coordinator.store.inbox import InboxKey
from services.core import digests
from services.core.ids import uuid7
from services.wire.v1.resources import Page, Run, RunCreate, RunJoin, RunStatus, RunValidate, RunValidation

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
    reply = await coordinator.shell.handle_once(CreateRun(run_id, federation_id, body.spec), inbox_key)
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
    await coordinator.shell.handle(JoinRun(run_id, run.federation_id, tuple(body.clients)))
    return await _answer_run(caller, run_id)


@router.post("/runs/{run_id}/pause", response_model=Run, responses=problems(*_STEERING))
async def pause_run(run_id: UUID, caller: Operator, if_match: IfMatch = None) -> Response:
    """Hand out no more work and compute nothing until it is resumed. What agents are doing counts."""
    await _require(caller, run_id)
    message = PauseRun(run_id, "operator", "paused by an operator", expected_version(if_match))
    await caller.shell.handle(message)
    return await _answer_run(caller, run_id)


@router.post("/runs/{run_id}/resume", response_model=Run, responses=problems(*_STEERING))
async def resume_run(run_id: UUID, caller: Operator, if_match: IfMatch = None) -> Response:
    """Go on with a paused run: failed tasks of its open round are handed out again. Or with one that failed, once the
    cause is gone: its cohorts go on from the models that they serve."""
    await _require(caller, run_id)
    await caller.shell.handle(ResumeRun(run_id, expected_version(if_match)))
    return await _answer_run(caller, run_id)


@router.post("/runs/{run_id}/cancel", response_model=Run, responses=problems(*_STEERING))
async def cancel_run(run_id: UUID, caller: Operator, if_match: IfMatch = None) -> Response:
    """End a run for good. Its checkpoints stay."""
    await _require(caller, run_id)
    message = CancelRun(run_id, "cancelled by an operator", expected_version(if_match))
    await caller.shell.handle(message)
    return await _answer_run(caller, run_id)


async def _require(caller: Caller, run_id: UUID) -> None:
    async with caller.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)


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
