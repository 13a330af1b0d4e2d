"""A coordinator behind its real app, in this process, and the agents and operators that talk to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from fastapi import FastAPI
from pydantic import SecretStr
from safetensors.numpy import save

from coordinator.api.app import create_app
from coordinator.api.server import Server
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import outbox
from services.core import digests
from tests.support.schemas import make_ready

Tensors = Mapping[str, npt.NDArray[Any]]
ADMIN_TOKEN = "the-admin-token-of-these-tests"
MODEL: Tensors = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.bias": np.zeros(2, dtype=np.float32),
    "steps": np.array(7, dtype=np.int64),
}


def update(value: float) -> Tensors:
    """A delta of every floating tensor of MODEL."""
    return {
        "layer.weight": np.full((2, 3), value, dtype=np.float32),
        "layer.bias": np.full(2, value, dtype=np.float32),
    }


def blob(tensors: Tensors) -> tuple[str, bytes]:
    data = save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    return digests.of_bytes(data), data


@dataclass
class Actor:
    """Somebody with a token."""

    http: httpx.AsyncClient
    token: str
    client_id: str = ""
    task_id: str = ""
    """Of the task that `holders` claimed for it."""

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **options)

    async def get(self, path: str, **options: Any) -> Any:
        response = await self.call("GET", path, **options)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None, *, expect: int = 201, **options: Any) -> Any:
        response = await self.call("POST", path, json=body, **options)
        assert response.status_code == expect, response.text
        return response.json()

    async def put_blob(self, tensors: Tensors, task: Mapping[str, Any] | None = None, **options: Any) -> str:
        """For a task, or as it comes: an operator, or a client that holds one task."""
        digest, data = blob(tensors)
        if task is not None:
            options["headers"] = {"Lethe-Task": task["task_id"], **options.get("headers", {})}
        response = await self.call("PUT", f"/v1/blobs/{digest}", content=data, **options)
        assert response.status_code in (200, 201), response.text
        return digest

    # what an agent does

    async def open_session(self) -> Any:
        return await self.post("/v1/sessions", {"agent_version": "test", "protocol": 1}, expect=200)

    async def claim(self, wait_s: float = 5) -> list[dict[str, Any]]:
        response = await self.call("POST", "/v1/tasks/claim", headers={"Prefer": f"wait={wait_s:g}"})
        assert response.status_code in (200, 204), response.text
        return response.json()["tasks"] if response.status_code == 200 else []

    async def submit(
        self, task: Mapping[str, Any], digest: str | None, num_samples: int = 10, **more: Any
    ) -> httpx.Response:
        body = {"lease_token": task["lease_token"], "update": digest, "num_samples": num_samples, **more}
        return await self.call("PUT", f"/v1/tasks/{task['task_id']}/result", json=body)

    async def train(self, value: float, num_samples: int = 10) -> dict[str, Any]:
        """Claim one task and answer it with a constant delta."""
        (task,) = await self.claim()
        response = await self.submit(task, await self.put_blob(update(value), task), num_samples)
        assert response.status_code == 200, response.text
        return task


@dataclass
class Site:
    app: FastAPI
    coordinator: Coordinator
    http: httpx.AsyncClient
    admin: Actor
    federation_id: str = ""

    def actor(self, token: str) -> Actor:
        return Actor(self.http, token)

    async def federation(self, name: str) -> str:
        return (await self.admin.post("/v1/federations", {"name": name}))["id"]  # type: ignore[no-any-return]

    async def enrol(self, *names: str, federation_id: str | None = None) -> list[Actor]:
        path = f"/v1/federations/{federation_id or self.federation_id}/clients"
        issued = [await self.admin.post(path, {"name": name}) for name in names]
        return [Actor(self.http, one["token"], one["client"]["id"]) for one in issued]

    async def holders(self, *names: str, federation_id: str | None = None) -> list[Actor]:
        """Clients that hold a task, each of a run of its own, and may therefore upload."""
        actors = await self.enrol(*names, federation_id=federation_id)
        for actor, name in zip(actors, names, strict=True):
            await self.start_run(f"for {name}", clients=[name], federation_id=federation_id)
            (task,) = await actor.claim()
            actor.task_id = task["task_id"]
        return actors

    async def staff(self, role: str, federation_id: str | None = None) -> Actor:
        path = f"/v1/federations/{federation_id or self.federation_id}/credentials"
        return self.actor((await self.admin.post(path, {"role": role}))["token"])

    async def upload_model(self, federation_id: str | None = None) -> str:
        return await self.admin.put_blob(MODEL, params={"federation_id": federation_id or self.federation_id})

    async def start_run(
        self, key: str = "one", *, by: Actor | None = None, federation_id: str | None = None, **changes: Any
    ) -> Any:
        spec = {
            "name": "tiny",
            "model": {"name": "custom"},
            "init": await self.upload_model(federation_id),
            "stop": {"rounds": 1},
            **changes,
        }
        body = {"federation_id": federation_id or self.federation_id, "spec": spec}
        return await (by or self.admin).post("/v1/runs", body, headers={"Idempotency-Key": key})


@contextlib.asynccontextmanager
async def opened(
    home: Path, database_url: str | None, federation: str = "cardiology", **settings: Any
) -> AsyncIterator[Site]:
    wanted = Settings(
        home=home,
        database_url=database_url,
        admin_token=SecretStr(ADMIN_TOKEN),
        blob_reserve_bytes=0,
        **settings,
    )
    home.mkdir(parents=True, exist_ok=True)
    await make_ready(wanted.url)
    coordinator = Coordinator(wanted)
    app = create_app(coordinator)
    async with app.router.lifespan_context(app), connected(app) as http:
        site = Site(app, coordinator, http, Actor(http, ADMIN_TOKEN))
        site.federation_id = await site.federation(federation)
        yield site


@contextlib.asynccontextmanager
async def serving(site: Site) -> AsyncIterator[Server]:
    """The site's app behind its real server, on a port of its own."""
    server = Server(site.app, site.coordinator.settings, port=0, lifespan="off")
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = True
        await running


@contextlib.asynccontextmanager
async def listening(site: Site) -> AsyncIterator[tuple[str, int]]:
    async with serving(site) as server:
        yield address_of(server)


def address_of(server: Server) -> tuple[str, int]:
    host, port = server.servers[0].sockets[0].getsockname()
    return host, port


async def until(condition: Callable[[], bool | Awaitable[bool]], within_s: float = 10.0) -> None:
    """Asking takes at most a quarter of the time: it would hold up what is waited for."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(within_s):
        while True:
            asked_at = clock()
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(min(0.25, max(0.01, 3 * (clock() - asked_at))))


async def has_been_retained(site: Site) -> bool:
    """Whether retention has done all that it has to, also what it is at."""
    async with site.coordinator.database.read() as connection:
        later = await site.coordinator.database.now(connection) + timedelta(days=1)
        return not await outbox.has_job(connection, ("collect-updates",), later)


def connected(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://coordinator")


def code_of(response: httpx.Response) -> str:
    """The code of a problem document, whose form is checked."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document = response.json()
    assert document["status"] == response.status_code
    assert document["type"] == f"/v1/problems/{document['code']}"
    return document["code"]  # type: ignore[no-any-return]
