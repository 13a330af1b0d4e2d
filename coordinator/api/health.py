"""For load balancers, Prometheus and people who look an error up. No credential needed."""

from __future__ import annotations

import asyncio
import shutil
from typing import Final

import structlog
from fastapi import APIRouter, Request, Response

from coordinator.api.bodies import answer
from coordinator.api.context import context_of
from coordinator.api.metrics import State
from coordinator.api.problems import PROBLEMS, problems
from coordinator.store import access_queries
from services.core.errors import Rejected
from services.wire.message import Message
from services.wire.v1.resources import Health

router = APIRouter(tags=["health"])
log = structlog.get_logger()
LONGEST_CHECK_S: Final = 5.0


class ProblemDescription(Message):
    type: str
    code: str
    title: str
    status: int
    retryable: bool


@router.get("/healthz", response_model=Health)
async def get_health() -> Response:
    """The process is alive."""
    return answer(Health(status="ok"))


@router.get("/readyz", response_model=Health, responses={503: {"model": Health, "description": "Send no traffic."}})
async def get_readiness(request: Request) -> Response:
    """The schema is current, the database takes writes, and all background work is up; `checks` names what is not."""
    context = context_of(request)
    if context.unready_because is not None:
        return answer(Health(status="not-ready", checks={"coordinator": context.unready_because}), 503)
    checks = {"coordinator": "ok", "database": "ok"}
    checks |= {name: health.problem or "ok" for name, health in context.coordinator.supervisor.health.items()}
    database = context.coordinator.database
    if not database.gate.is_open:
        checks["evidence"] = database.gate.reason
    try:
        async with asyncio.timeout(LONGEST_CHECK_S), database.past_the_gate().write() as connection:
            await access_queries.takes_writes(connection)
    except Exception as error:  # whatever it is, it is not ready
        log.warning("database.not-ready", error=str(error)[:200])
        checks["database"] = "does not answer, or takes no writes"
    if any(found != "ok" for found in checks.values()):
        return answer(Health(status="not-ready", checks=checks), 503)
    return answer(Health(status="ok", checks=checks))


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
async def get_metrics(request: Request) -> Response:
    """For Prometheus; one scrape per replica."""
    context = context_of(request)
    coordinator, state = context.coordinator, None
    if context.unready_because is None:
        try:
            async with coordinator.database.read() as connection:
                now = await coordinator.database.now(connection)
                figures = await access_queries.figures(connection)
            state = State(figures, await coordinator.quota.usage(), now)
        except Exception as error:  # what this process knows by itself is told nevertheless
            log.warning("metrics.without-database", error=str(error)[:200])
        try:
            disk = shutil.disk_usage(coordinator.settings.blob_path) if coordinator.settings.blobs == "file" else None
            context.metrics.set_disk(disk)
        except OSError as error:
            log.warning("metrics.without-disk", error=str(error)[:200])
    return Response(context.metrics.text(state), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/problems/{code}", response_model=ProblemDescription, responses=problems("not-found"))
async def get_problem(code: str) -> Response:
    """What a problem type means."""
    kind = PROBLEMS.get(code)
    if kind is None:
        raise Rejected("not-found", f"there is no problem type of that name; known are {', '.join(PROBLEMS)}")
    return answer(
        ProblemDescription(
            type=f"/v1/problems/{code}", code=code, title=kind.title, status=kind.status, retryable=kind.retryable
        )
    )
