"""How a run is getting on: its cohorts and their members, its rounds, its tasks, what it keeps of past rounds."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from coordinator.api.auth import Reader
from coordinator.api.bodies import WantedPage, answer, answer_page
from coordinator.api.problems import problems
from coordinator.engine.entities import TaskStatus
from coordinator.store import history_queries, queries
from services.wire.v1.resources import Cohort, CohortHistory, KeptUpdate, Member, Page, Round, Task

router = APIRouter(prefix="/v1")
_PROBLEMS: Final = problems("unauthenticated", "forbidden", "not-found")


@router.get("/runs/{run_id}/cohorts", response_model=Page[Cohort], responses=_PROBLEMS, tags=["cohorts"])
async def list_cohorts(request: Request, run_id: UUID, caller: Reader, position: WantedPage) -> Response:
    async with caller.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)
        page = await queries.cohorts(connection, run_id, position)
    return answer_page(request, page)


@router.get("/cohorts/{cohort_id}", response_model=Cohort, responses=_PROBLEMS, tags=["cohorts"])
async def get_cohort(cohort_id: UUID, caller: Reader) -> Response:
    async with caller.database.read() as connection:
        cohort = await queries.cohort(connection, cohort_id, caller.within)
    return answer(cohort)


@router.get("/cohorts/{cohort_id}/members", response_model=Page[Member], responses=_PROBLEMS, tags=["cohorts"])
async def list_members(request: Request, cohort_id: UUID, caller: Reader, position: WantedPage) -> Response:
    """Those who take part now, by name."""
    async with caller.database.read() as connection:
        await queries.cohort(connection, cohort_id, caller.within)
        page = await queries.members(connection, cohort_id, position)
    return answer_page(request, page)


@router.get("/runs/{run_id}/rounds", response_model=Page[Round], responses=_PROBLEMS, tags=["rounds"])
async def list_rounds(request: Request, run_id: UUID, caller: Reader, position: WantedPage) -> Response:
    async with caller.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)
        page = await queries.rounds(connection, run_id, position)
    return answer_page(request, page)


@router.get("/runs/{run_id}/tasks", response_model=Page[Task], responses=_PROBLEMS, tags=["tasks"])
async def list_tasks(
    request: Request,
    run_id: UUID,
    caller: Reader,
    position: WantedPage,
    status: Annotated[TaskStatus | None, Query()] = None,
) -> Response:
    async with caller.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)
        page = await queries.tasks(connection, run_id, status, position)
    return answer_page(request, page)


@router.get("/runs/{run_id}/history", response_model=Page[CohortHistory], responses=_PROBLEMS, tags=["history"])
async def list_histories(request: Request, run_id: UUID, caller: Reader, position: WantedPage) -> Response:
    """What is kept of each cohort's updates, and which methods that suffices for."""
    async with caller.database.read() as connection:
        run = await queries.run(connection, run_id, caller.within)
        page = await history_queries.cohorts(connection, run_id, run.spec.history.updates, position)
    return answer_page(request, page)


@router.get("/runs/{run_id}/history/updates", response_model=Page[KeptUpdate], responses=_PROBLEMS, tags=["history"])
async def list_kept_updates(request: Request, run_id: UUID, caller: Reader, position: WantedPage) -> Response:
    """The sealed copies, the oldest first."""
    async with caller.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)
        page = await history_queries.kept_updates(connection, run_id, position)
    return answer_page(request, page)
