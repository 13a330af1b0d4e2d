"""For load balancers, Prometheus and people who look an error up. No credential needed."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response

from coordinator.api.bodies import answer
from coordinator.api.context import context_of
from coordinator.api.problems import PROBLEMS, problems
from coordinator.store import doorway
from coordinator.store.database import Unavailable
from services.core.errors import Rejected
from services.wire.message import Message
from services.wire.v1.resources import Health

router = APIRouter(tags=["health"])


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
    """The schema is current and the database answers."""
    context = context_of(request)
    if context.unready_because is not None:
        return answer(Health(status="not-ready", checks={"coordinator": context.unready_because}), 503)
    try:
        async with context.coordinator.database.read() as connection:
            await doorway.answers(connection)
    except Unavailable:
        return answer(Health(status="not-ready", checks={"database": "does not answer"}), 503)
    checks: dict[str, Literal["ok"]] = {"coordinator": "ok", "database": "ok"}
    return answer(Health(status="ok", checks=dict(checks)))


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
async def get_metrics(request: Request) -> Response:
    """For Prometheus; one scrape per replica."""
    context = context_of(request)
    figures = now = None
    if context.unready_because is None:
        try:
            async with context.coordinator.database.read() as connection:
                now = await context.coordinator.database.now(connection)
                figures = await doorway.figures(connection)
        except Unavailable:
            figures = None
    return Response(context.metrics.text(figures, now), media_type="text/plain; version=0.0.4; charset=utf-8")


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
