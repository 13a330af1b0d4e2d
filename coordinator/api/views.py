"""A run as people look at it: as a picture, as curves, as a grid."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Response

from coordinator.api.auth import Reader
from coordinator.api.bodies import answer
from coordinator.api.problems import problems
from coordinator.store import grid_queries, queries, series_queries, topology_queries
from coordinator.store.grid_queries import MOST_ROUNDS, USUAL_ROUNDS, Window
from coordinator.store.paging import Position
from coordinator.store.series_queries import MOST_COHORTS, USUAL
from services.core.errors import Rejected
from services.wire.v1.views import RunGrid, RunSeries, RunTopology

router = APIRouter(prefix="/v1", tags=["views"])
_PROBLEMS: Final = problems("unauthenticated", "forbidden", "not-found")
MOST_MEMBERS: Final = 1000
MOST_ROUND: Final = 1_000_000_000
Metric = Annotated[str, Query(max_length=200)]


@router.get("/runs/{run_id}/topology", response_model=RunTopology, responses=_PROBLEMS)
async def get_topology(
    run_id: UUID,
    caller: Reader,
    members: Annotated[int, Query(ge=0, le=MOST_MEMBERS, description="At most so many of each cohort.")] = 50,
) -> Response:
    """All cohorts of the run, with their members, served models and fences. A cohort that was named after a client
    which was erased since has no name."""
    async with caller.database.read() as connection:
        return answer(await topology_queries.topology(connection, run_id, caller.within, members))


@router.get("/runs/{run_id}/series", response_model=RunSeries, responses=_PROBLEMS)
async def get_series(
    run_id: UUID,
    caller: Reader,
    metric: Annotated[
        list[Metric],
        Query(
            max_length=20,
            description="`accuracy`, `loss`, `seconds`, `clients`, `bytes_received`, `accuracy/*` (one for each class "
            "of the coordinator's validation set, if it has 20 at most), or any figure of its models; "
            f"{', '.join(USUAL)} when absent.",
        ),
    ] = [],  # noqa: B006
    cohort: Annotated[
        list[UUID],
        Query(
            max_length=MOST_COHORTS,
            description=f"Only of these; when absent, of the first {MOST_COHORTS} that are no part of another.",
        ),
    ] = [],  # noqa: B006
    points: Annotated[int, Query(ge=4, le=5000, description="At most so many of each series.")] = 400,
) -> Response:
    """How figures of the run went, in the order of time."""
    async with caller.database.read() as connection:
        await queries.require_run(connection, run_id, caller.within)
        return answer(await series_queries.series(connection, run_id, metric, cohort, points))


@router.get("/runs/{run_id}/grid", response_model=RunGrid, responses=_PROBLEMS)
async def get_grid(
    run_id: UUID,
    caller: Reader,
    rounds_from: Annotated[int | None, Query(ge=1, le=MOST_ROUND)] = None,
    rounds_to: Annotated[int | None, Query(ge=1, le=MOST_ROUND)] = None,
    cohort: Annotated[UUID | None, Query(description="Only what this one asked.")] = None,
    clients: Annotated[int, Query(ge=1, le=500, description="At most so many rows.")] = 100,
    cursor: Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before.")] = None,
) -> Response:
    """Which client did what in which round: the newest rounds when none are named. Clients that were erased have no
    row. Where several cohorts ask a client in one round, the cell says what needs attention most."""
    if rounds_from is not None and rounds_to is not None and not 0 <= rounds_to - rounds_from < MOST_ROUNDS:
        raise Rejected(
            "invalid-request",
            f"rounds_to must not lie before rounds_from, nor {MOST_ROUNDS} or more after it; without both, the newest "
            f"{USUAL_ROUNDS} are shown",
        )
    async with caller.database.read() as connection:
        federation_id = await queries.require_run(connection, run_id, caller.within)
        if cohort is not None and (await queries.cohort(connection, cohort, caller.within)).run_id != run_id:
            raise Rejected("not-found", f"run {run_id} has no cohort {cohort}")
        window = Window(rounds_from, rounds_to, cohort)
        return answer(await grid_queries.grid(connection, run_id, federation_id, window, Position(clients, cursor)))
