"""Generated requests against a running server: no 5xx, every answer as documented, every error a known problem."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from coordinator.api.app import create_app
from coordinator.api.openapi import document
from coordinator.api.problems import PROBLEMS
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import schema as database_schema
from coordinator.store.database import Database
from tests.integration.api.site import ADMIN_TOKEN, MODEL, blob, until

pytestmark = pytest.mark.timeout(300)


# Not every boundary of every parameter ("coverage"): those take minutes.
config = schemathesis.config.SchemathesisConfig.from_dict({"seed": 1, "phases": {"coverage": {"enabled": False}}})
contract = schemathesis.openapi.from_dict(document(), config=config).exclude(path_regex="/events/stream$")
"""Streams do not end while what they tell of goes on; tests/integration/api reads them."""
bounded = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Server:
    url: str
    client_token: str
    ids: dict[str, str]
    """A real value for each path parameter."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home: Path = tmp_path_factory.mktemp("home")
    wanted = Settings(
        home=home, admin_token=SecretStr(ADMIN_TOKEN), blob_reserve_bytes=0, max_blob_bytes=1 << 20, max_wait_s=0.1
    )
    asyncio.run(_upgrade(wanted.url))
    running: Queue[uvicorn.Server] = Queue()

    async def serve() -> None:
        config = uvicorn.Config(create_app(Coordinator(wanted)), port=0, log_level="error", access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started or serving.done())
        running.put(server)
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    server = running.get(timeout=30)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield _populated(f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        thread.join(30)


async def _upgrade(url: str) -> None:
    database = Database(url)
    await database_schema.upgrade(database)
    await database.close()


def _populated(url: str) -> Server:
    digest, data = blob(MODEL)
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as admin:

        def post(path: str, body: Any, **headers: str) -> Any:
            response = admin.post(path, json=body, headers=headers)
            assert response.status_code in (201, 202), response.text
            return response.json()

        federation = post("/v1/federations", {"name": "cardiology"})["id"]
        worker = post(f"/v1/federations/{federation}/clients", {"name": "a"})
        leaver = post(f"/v1/federations/{federation}/clients", {"name": "b"})
        credential = post(f"/v1/federations/{federation}/credentials", {"role": "viewer"})
        admin.put(f"/v1/blobs/{digest}", params={"federation_id": federation}, content=data).raise_for_status()
        spec = {"name": "tiny", "model": {"name": "custom"}, "init": digest, "clients": ["a"]}
        run = post("/v1/runs", {"federation_id": federation, "spec": spec}, **{"Idempotency-Key": "k"})["id"]
        claim = admin.post("/v1/tasks/claim", headers={"Authorization": f"Bearer {worker['token']}"})
        wanted = {"federation_id": federation, "subjects": ["b"], "needs_approval": True}
        erasure = post("/v1/erasure-requests", wanted, **{"Idempotency-Key": "k"})["id"]
        ids = {
            "federation_id": federation,
            "client_id": leaver["client"]["id"],
            "credential_id": credential["id"],
            "run_id": run,
            "cohort_id": admin.get(f"/v1/runs/{run}/cohorts").json()["items"][0]["id"],
            "checkpoint_id": admin.get(f"/v1/runs/{run}/checkpoints").json()["items"][0]["id"],
            "task_id": claim.json()["tasks"][0]["task_id"],
            "digest": digest,
            "erasure_id": erasure,
            "code": "lease-lost",
        }
    return Server(url, worker["token"], ids)


def check(server: Server, token: str, case: Any) -> None:
    """As generated, and once more with addresses that exist."""
    for given in ({}, server.ids):
        for name in case.path_parameters or {}:
            if name in given:
                case.path_parameters[name] = given[name]
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        response = case.call(base_url=server.url, headers=headers, timeout=20)
        case.validate_response(
            response, checks=[not_a_server_error, status_code_conformance, response_schema_conformance]
        )
        if response.status_code >= 400:
            assert response.headers["content-type"] == ["application/problem+json"], response.headers
            if case.method.upper() != "HEAD":
                problem = response.json()
                assert problem["status"] == response.status_code == PROBLEMS[problem["code"]].status


@contract.parametrize()
@bounded
def test_an_admin_gets_documented_answers_only(server: Server, case: Any) -> None:
    check(server, ADMIN_TOKEN, case)


@contract.parametrize()
@bounded
def test_a_client_gets_documented_answers_only(server: Server, case: Any) -> None:
    check(server, server.client_token, case)
