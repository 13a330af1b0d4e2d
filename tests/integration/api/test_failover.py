"""The database under a running coordinator is replaced by one from before an erasure: nothing superseded is served."""

from __future__ import annotations

from functools import partial

import pytest

from tests.integration.api.site import Actor, Site, until
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.anyio
eventually = partial(until, within_s=60.0)
REQUESTS = "/v1/erasure-requests"


async def train_two(site: Site) -> tuple[Actor, list[str]]:
    """A run of one round, completed. Returns the client that stays, and the addresses of the model."""
    a, b = await site.enrol("a", "b")
    run = await site.start_run()
    await a.train(1.0)
    await b.train(2.0)
    await eventually(lambda: is_completed(site, f"/v1/runs/{run['id']}"))
    (model,) = [one for one in await checkpoints(site, run["id"]) if one["round"] == 1]
    blob = f"/v1/blobs/{model['digest']}?federation_id={site.federation_id}"
    return b, [f"/v1/checkpoints/{model['id']}/model", blob]


async def checkpoints(site: Site, run_id: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await site.admin.get(f"/v1/runs/{run_id}/checkpoints"))["items"]
    return found


async def is_completed(site: Site, path: str) -> bool:
    return bool((await site.admin.get(path))["status"] == "completed")


async def erase(site: Site, name: str) -> str:
    """File the request and wait for its fence."""
    body = {"federation_id": site.federation_id, "subjects": [name]}
    filed = await site.admin.post(REQUESTS, body, headers={"Idempotency-Key": name}, expect=202)
    path = f"{REQUESTS}/{filed['id']}"
    await eventually(lambda: is_fenced(site, path))
    return path


async def is_fenced(site: Site, path: str) -> bool:
    return (await site.admin.get(path))["fenced_at"] is not None


async def statuses(site: Site, paths: list[str]) -> list[int]:
    return [(await site.admin.call("GET", path)).status_code for path in paths]


class Postgres:
    """A server on which databases change places while they are in use."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self._server, self._name = server, name

    def _close(self) -> None:
        self._server.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
        self._server.execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{self._name}'"
        )

    def copy(self) -> None:
        self._close()
        self._server.execute(f"CREATE DATABASE {self._name}_before TEMPLATE {self._name}")
        self._server.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    def fail_over(self) -> None:
        self._close()
        self._server.execute(f"ALTER DATABASE {self._name} RENAME TO {self._name}_after")
        self._server.execute(f"ALTER DATABASE {self._name}_before RENAME TO {self._name}")


async def test_a_failover_to_a_database_from_before_the_fence_never_serves_the_superseded_model(
    site: Site, postgres_server: PostgresServer
) -> None:
    if site.coordinator.database.is_sqlite:
        pytest.skip("a file does not fail over")
    server = Postgres(postgres_server, site.coordinator.database.url.database or "")
    _, paths = await train_two(site)
    assert await statuses(site, paths) == [200, 200]
    server.copy()
    request = await erase(site, "a")
    filed = await site.admin.get(request)
    assert await statuses(site, paths) == [410, 410]
    server.fail_over()
    seen: set[int] = set()
    while 410 not in seen:
        seen |= set(await statuses(site, paths))
        assert 200 not in seen, seen
    again = await site.admin.get(request)
    assert again["fenced_at"] > filed["fenced_at"]
