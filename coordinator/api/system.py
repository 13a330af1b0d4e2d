"""Workers and the whole installation, for whoever operates them; and the keys that anybody may know."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from importlib import metadata
from typing import Final
from uuid import UUID

from fastapi import APIRouter, Request, Response
from pydantic import RootModel

from coordinator.api.auth import Admin, Reader
from coordinator.api.bodies import WantedPage, answer, answer_page
from coordinator.api.context import context_of
from coordinator.api.problems import problems
from coordinator.runtime.coordinator import Coordinator
from coordinator.store import accounts, schema, system_queries, worker_queries
from services.core.errors import Rejected
from services.wire.v1.resources import Page, Task
from services.wire.v1.views import (
    BackgroundWork,
    BlobFigures,
    DatabaseHealth,
    FederationStorage,
    RedisHealth,
    System,
    SystemKeys,
    VerificationKey,
    Worker,
)

router = APIRouter(prefix="/v1", generate_unique_id_function=lambda route: route.name)
"""The title of a list in the contract is made of its route's name when the route is."""
_ALWAYS: Final = ("unauthenticated", "forbidden")


@router.get(
    "/clients/{client_id}/tasks",
    tags=["clients"],
    response_model=Page[Task],
    responses=problems(*_ALWAYS, "not-found"),
)
async def list_client_tasks(request: Request, client_id: UUID, caller: Reader, position: WantedPage) -> Response:
    """What the client was asked in all runs, newest first."""
    async with caller.database.read() as connection:
        await accounts.client(connection, client_id, caller.within)
        page = await worker_queries.tasks_of(connection, client_id, position)
    return answer_page(request, page)


@router.get(
    "/federations/{federation_id}/workers",
    tags=["clients"],
    response_model=Page[Worker],
    responses=problems(*_ALWAYS, "not-found"),
)
async def list_workers(request: Request, federation_id: UUID, caller: Reader, position: WantedPage) -> Response:
    """How each client's worker is, by name."""
    async with caller.database.read() as connection:
        await accounts.federation(connection, federation_id, caller.within)
        known = await worker_queries.workers(connection, federation_id, position)
    heard_of = await caller.coordinator.bus.alive([str(one.client_id) for one in known.items])
    shown = [_worker(one, is_heard_of=str(one.client_id) in heard_of) for one in known.items]
    return answer_page(request, Page[Worker](items=shown, next_cursor=known.next_cursor))


@router.get("/system", tags=["health"], response_model=System, responses=problems(*_ALWAYS))
async def get_system(caller: Admin) -> Response:
    """How the installation is. Only its admin may see it."""
    if caller.within is not None:
        raise Rejected("forbidden", "only the installation's admin may look at the system")
    coordinator = caller.coordinator
    revision = await schema.current(coordinator.database)
    async with coordinator.database.read() as connection:
        now = await coordinator.database.now(connection)
        storage = await system_queries.storage(connection)
        queue = await system_queries.queue(connection)
        keys = await system_queries.keys(connection)
    settings, is_sqlite = coordinator.settings, coordinator.database.is_sqlite
    quota = coordinator.quota.federation_bytes
    return answer(
        System(
            version=metadata.version("lethe"),
            started_at=_instant(coordinator.created_at, now),
            database=DatabaseHealth(
                kind="sqlite" if is_sqlite else "postgres", revision=revision, ok=coordinator.database.gate.is_open
            ),
            redis=None if settings.redis_url is None else RedisHealth(ok=coordinator.bus.is_up),
            blobs=BlobFigures(
                kind=settings.blobs,
                bytes=sum(num_bytes for num_bytes, _ in storage.values()),
                objects=sum(num for _, num in storage.values()),
            ),
            storage_by_federation=[
                FederationStorage(federation_id=federation_id, bytes=num_bytes, quota_bytes=quota)
                for federation_id, (num_bytes, _) in storage.items()
            ],
            queue=queue,
            background=_background(coordinator, now),
            keys=SystemKeys(signing_key_id=keys[-1].key_id if keys else None),
        )
    )


class VerificationKeys(RootModel[list[VerificationKey]]):
    """Oldest first."""


@router.get("/keys", tags=["erasure"], response_model=list[VerificationKey], responses=problems(*_ALWAYS))
async def list_keys(request: Request) -> Response:
    """Every key that certificates of this installation were ever signed with, the one that signs now last. Needs no
    credential. Whoever verifies a certificate should compare the key's id with one that was obtained elsewhere."""
    async with context_of(request).coordinator.database.read() as connection:
        return answer(VerificationKeys(await system_queries.keys(connection)))


def _worker(known: worker_queries.KnownWorker, *, is_heard_of: bool) -> Worker:
    status = "working" if known.task_in_hand is not None else "waiting"
    if not is_heard_of:
        status = "never" if known.last_seen_at is None else "away"
    fields = {name: getattr(known, name) for name in Worker.model_fields if name != "status"}
    return Worker(**fields, status=status)  # type: ignore[arg-type]  # one of the four


def _background(coordinator: Coordinator, now: datetime) -> list[BackgroundWork]:
    return [
        BackgroundWork(
            name=name,
            state="up" if health.problem is None else "down",
            since=_instant(health.since, now),
            reason=health.problem,
            restarts=health.num_restarts,
        )
        for name, health in coordinator.supervisor.health.items()
    ]


def _instant(at: float, now: datetime) -> datetime:
    """The instant that a reading of the monotonic clock stands for."""
    return now - timedelta(seconds=time.monotonic() - at)
