"""The database under a running coordinator is replaced by one from before an erasure: nothing superseded is served."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

import migrations
from coordinator.engine.messages import FenceErasure
from coordinator.engine.react import EVIDENCE
from coordinator.store import evidence
from coordinator.store import tables as t
from coordinator.store.database import Database
from coordinator.tombstones.files import FIRST_PREVIOUS
from coordinator.tombstones.port import Tombstone
from tests.integration.api.site import Actor, Site, code_of, opened, until
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
    """File the request and wait for its fence. A copy of the database ends the sessions that there were."""
    body = {"federation_id": site.federation_id, "subjects": [name]}
    answers: list[httpx.Response] = []

    async def is_filed() -> bool:
        answers.append(await site.admin.call("POST", REQUESTS, json=body, headers={"Idempotency-Key": name}))
        assert answers[-1].status_code in (202, 503), answers[-1].text
        return answers[-1].status_code == 202

    await eventually(is_filed)
    path = f"{REQUESTS}/{answers[-1].json()['id']}"
    await eventually(lambda: is_fenced(site, path))
    return path


async def is_fenced(site: Site, path: str) -> bool:
    return (await site.admin.get(path))["fenced_at"] is not None


async def statuses(site: Site, paths: list[str]) -> list[int]:
    return [(await site.admin.call("GET", path)).status_code for path in paths]


async def is_noted(site: Site) -> bool:
    """Whether the database knows all entries of the log."""
    async with site.coordinator.database.past_the_gate().read() as connection:
        mark = await evidence.mark(connection)
    return mark is not None and mark.num_tombstones == len(site.coordinator.tombstones.entries())


async def is_ready(site: Site) -> bool:
    return (await site.http.get("/readyz")).status_code == 200


async def says(site: Site, said: str) -> bool:
    return any(said in one for one in (await site.http.get("/readyz")).json()["checks"].values())


@pytest.fixture
async def postgres_site(tmp_path: Path, postgres_url: str) -> AsyncIterator[Site]:
    async with opened(tmp_path / "home", postgres_url) as site:
        yield site


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
    postgres_site: Site, postgres_server: PostgresServer
) -> None:
    site = postgres_site
    server = Postgres(postgres_server, site.coordinator.database.url.database or "")
    b, paths = await train_two(site)
    assert await statuses(site, paths) == [200, 200]
    server.copy()
    request = await erase(site, "a")
    filed = await site.admin.get(request)
    assert await statuses(site, paths) == [410, 410]
    server.fail_over()
    seen: set[int] = set()

    async def is_refused() -> bool:
        seen.update(await statuses(site, paths))
        assert 200 not in seen, seen
        return 410 in seen

    await eventually(is_refused)
    again = await site.admin.get(request)
    assert again["fenced_at"] > filed["fenced_at"] and again["requested_by"] == filed["requested_by"]
    await eventually(lambda: is_ready(site))
    await b.train(2.0)
    await eventually(lambda: is_completed(site, request))


async def test_a_failover_to_a_database_that_is_not_behind_asks_nothing_of_anybody(
    postgres_site: Site, postgres_server: PostgresServer
) -> None:
    site = postgres_site
    server = Postgres(postgres_server, site.coordinator.database.url.database or "")
    _, paths = await train_two(site)
    request = await erase(site, "a")
    await eventually(lambda: is_noted(site))
    before = await site.admin.get(request)
    server.copy()
    server.fail_over()
    await eventually(lambda: is_ready(site))
    assert (await site.admin.get(request))["fenced_at"] == before["fenced_at"]
    assert await statuses(site, paths) == [410, 410]


async def test_a_failover_to_an_older_schema_says_that_it_has_to_be_upgraded(
    postgres_site: Site, postgres_server: PostgresServer
) -> None:
    site = postgres_site
    database = Database(site.coordinator.settings.url)
    async with database.write() as connection:
        await connection.execute(sa.text("ALTER TABLE evidence_state RENAME TO not_yet"))
        await connection.execute(sa.text("UPDATE alembic_version SET version_num = '0004'"))
    name = database.url.database
    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    await eventually(lambda: says(site, "lethe db upgrade"))
    response = await site.admin.call("GET", "/v1/runs")
    assert (response.status_code, code_of(response)) == (503, "not-ready")
    async with database.write() as connection:
        await connection.execute(sa.text("ALTER TABLE not_yet RENAME TO evidence_state"))
        await connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{migrations.NEWEST}'"))
    await database.close()
    await eventually(lambda: is_ready(site))


async def test_a_file_that_replaces_the_database_is_noticed_and_fenced_again(small_site: Site, tmp_path: Path) -> None:
    site = small_site
    _, paths = await train_two(site)
    database = site.coordinator.settings.home / "lethe.db"
    with contextlib.closing(sqlite3.connect(database)) as source:
        source.execute("VACUUM INTO ?", (str(tmp_path / "backup.db"),))
    request = await erase(site, "a")
    filed = await site.admin.get(request)
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink()
    (tmp_path / "backup.db").replace(database)
    site.coordinator.bus.wake([EVIDENCE])

    async def is_fenced_again() -> bool:
        assert set(await statuses(site, paths)) <= {410, 503}
        response = await site.admin.call("GET", request)
        return bool(response.status_code == 200 and response.json()["fenced_at"] > filed["fenced_at"])

    await eventually(is_fenced_again)
    again = await site.admin.get(request)
    assert again["requested_by"] == filed["requested_by"]


async def test_a_database_that_fell_behind_without_a_broken_connection_is_noticed_on_the_clock(site: Site) -> None:
    """As behind a proxy that leads to another server from one statement to the next."""
    _, paths = await train_two(site)
    request = await erase(site, "a")
    await eventually(lambda: is_noted(site))
    behind = Database(site.coordinator.settings.url)
    async with behind.write() as connection:  # what a database from before the request would lack
        await connection.execute(sa.select(t.erasures).with_for_update())  # nothing is written about it meanwhile
        for table in (t.certificates, t.artefacts, t.erasure_log, t.lines, t.subjects, t.deliveries):
            await connection.execute(sa.delete(table))
        await connection.execute(t.checkpoints.update().values(superseded_by=None))
        await connection.execute(sa.delete(t.jobs))
        await connection.execute(t.clients.update().values(status="active"))
        await connection.execute(sa.delete(t.erasures))
        await connection.execute(t.evidence_state.update().values(num_tombstones=0, digest=FIRST_PREVIOUS))
    await behind.close()
    await eventually(lambda: is_noted(site))
    assert (await site.admin.get(request))["fenced_at"] is not None
    assert await statuses(site, paths) == [410, 410]


async def test_a_request_whose_fence_breaks_stops_nobody_else(site: Site, postgres_server: PostgresServer) -> None:
    """Also when connections are made anew meanwhile: it was never fenced, and its own job says what is wrong."""
    await site.enrol("a", "b", "c")
    body = {"federation_id": site.federation_id, "subjects": ["a"], "needs_approval": True}
    filed = await site.admin.post(REQUESTS, body, headers={"Idempotency-Key": "a"}, expect=202)
    coordinator, erasure_id = site.coordinator, UUID(filed["id"])
    async with coordinator.database.write() as connection:
        broken = t.erasures.update().values(status="received", scope="samples", samples=[7])
        await connection.execute(broken.where(t.erasures.c.id == erasure_id))
        (client,) = await accounts_of(connection, "a")
    coordinator.tombstones.append(
        Tombstone(
            request_id=erasure_id,
            federation_id=UUID(site.federation_id),
            scope="client",
            client_ids=(client,),
            cohorts=(),
            at=datetime(2026, 3, 1, tzinfo=UTC),
        )
    )
    coordinator.bus.wake([EVIDENCE])
    for name in ("b", "c"):
        if not coordinator.database.is_sqlite:
            place = coordinator.database.url.database
            postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{place}'")
        request = await patiently_erase(site, name)
        await eventually(lambda path=request: is_completed(site, path))  # type: ignore[misc]
    assert not await is_noted(site)
    async with coordinator.database.write() as connection:
        await connection.execute(
            t.erasures.update().values(scope="client", samples={}).where(t.erasures.c.id == erasure_id)
        )
    await coordinator.shell.handle(FenceErasure(erasure_id, erasure_id))
    coordinator.bus.wake([EVIDENCE])
    await eventually(lambda: is_noted(site))


async def accounts_of(connection: AsyncConnection, *names: str) -> list[UUID]:
    found = await connection.execute(sa.select(t.clients.c.id).where(t.clients.c.name.in_(names)))
    return list(found.scalars())


async def patiently_erase(site: Site, name: str) -> str:
    """As a client that was told to try again does."""
    filed: list[httpx.Response] = []

    async def is_taken() -> bool:
        body = {"federation_id": site.federation_id, "subjects": [name]}
        filed.append(await site.admin.call("POST", REQUESTS, json=body, headers={"Idempotency-Key": name}))
        return filed[-1].status_code == 202

    await eventually(is_taken)
    path = f"{REQUESTS}/{filed[-1].json()['id']}"
    await eventually(lambda: is_fenced(site, path))
    return path
