"""A coordinator whose database or directory of evidence fails for a while: it says so, and goes on by itself."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from coordinator.api.app import create_app
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import tables as t
from coordinator.store import warm
from coordinator.store.database import Database
from tests.integration.api.site import ADMIN_TOKEN, Actor, Site, code_of, connected, opened
from tests.integration.api.site import until as until_within
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.anyio
until = partial(until_within, within_s=60.0)
REQUESTS = "/v1/erasure-requests"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def postgres_site(tmp_path: Path, postgres_url: str) -> AsyncIterator[Site]:
    async with opened(tmp_path / "home", postgres_url) as site:
        yield site


async def troubles(site: Site) -> dict[str, str]:
    """What `/readyz` says of what is not ok."""
    response = await site.http.get("/readyz")
    found: dict[str, str] = {name: said for name, said in response.json()["checks"].items() if said != "ok"}
    assert (response.status_code == 200) == (not found)
    return found


async def is_ready(site: Site) -> bool:
    return not await troubles(site)


async def has_status(actor: Actor, path: str, status: str) -> bool:
    return bool((await actor.get(path))["status"] == status)


def reconfigure(server: PostgresServer, site: Site, change: str) -> None:
    """Change the database for all sessions from now on, and end those there are."""
    name = site.coordinator.database.url.database
    server.execute(f"ALTER DATABASE {name} {change}")
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


async def begin(site: Site) -> tuple[Actor, str]:
    """A client whose lease has run out, and its run: they get on only if the clockwork does."""
    (a,) = await site.enrol("a")
    run = await site.start_run()
    await a.claim()
    return a, f"/v1/runs/{run['id']}"


async def expire(site: Site) -> None:
    async with site.coordinator.database.write() as connection:
        await connection.execute(t.tasks.update().values(due_at=LONG_AGO))
        await warm.renew(connection, sa.true())


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("SET default_transaction_read_only = on", "SET default_transaction_read_only = off"),
        ("ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true"),
    ],
)
async def test_a_failover_of_postgres_is_a_503_and_not_ready_and_the_clockwork_survives_it(
    postgres_site: Site, postgres_server: PostgresServer, fault: str, remedy: str
) -> None:
    site = postgres_site
    a, run = await begin(site)
    await expire(site)
    reconfigure(postgres_server, site, fault)
    response = await site.admin.call("POST", f"{run}/pause")
    assert (response.status_code, code_of(response)) == (503, "unavailable")
    assert response.headers["retry-after"]
    assert "database" in await troubles(site)
    postgres_server.execute(f"ALTER DATABASE {site.coordinator.database.url.database} {remedy}")  # nobody is ended
    await until(lambda: is_ready(site))
    await a.train(1.0)
    await until(lambda: has_status(site.admin, run, "completed"))
    assert not any(health.num_restarts for health in site.coordinator.supervisor.health.values())


async def test_statements_that_postgres_cancels_do_not_end_the_clockwork(
    postgres_site: Site, postgres_server: PostgresServer
) -> None:
    site = postgres_site
    a, run = await begin(site)
    await expire(site)
    reconfigure(postgres_server, site, "SET statement_timeout = 100")
    other = Database(site.coordinator.settings.url)
    async with other.write() as connection:
        await connection.execute(sa.text("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE"))
        await until(lambda: "clockwork" in site.coordinator.supervisor.down())
        response = await site.admin.call("POST", f"{run}/pause")
        assert (response.status_code, code_of(response)) == (503, "unavailable")
        assert "clockwork" in await troubles(site)
    await other.close()
    reconfigure(postgres_server, site, "SET statement_timeout = 0")
    await until(lambda: is_ready(site))
    await a.train(1.0)
    await until(lambda: has_status(site.admin, run, "completed"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs privileges")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def file_erasure(site: Site, name: str) -> str:
    body = {"federation_id": site.federation_id, "subjects": [name]}
    filed = await site.admin.post(REQUESTS, body, headers={"Idempotency-Key": name}, expect=202)
    return f"{REQUESTS}/{filed['id']}"


def take_away(evidence: Path) -> None:
    """As if its disk were not there; not even root can write below a file."""
    evidence.mkdir(exist_ok=True)
    evidence.rename(evidence.with_name("away"))
    evidence.write_text("not a directory")


def give_back(evidence: Path) -> None:
    evidence.unlink()
    evidence.with_name("away").rename(evidence)


async def assert_held(site: Site, request: str, step: str) -> None:
    """The request says why it does not go on, and so do readiness and metrics."""
    await until(lambda: has_status(site.admin, request, "requires_action"))
    assert (await site.admin.get(request))["reason"].startswith(f"its {step} failed: the directory of evidence")
    await until(lambda: _is_evidence_down(site))
    assert 'lethe_background_up{task="evidence"} 0.0' in (await site.http.get("/metrics")).text


async def _is_evidence_down(site: Site) -> bool:
    return "the directory of evidence cannot be used" in (await troubles(site)).get("evidence", "")


async def assert_goes_on(site: Site, request: str) -> None:
    await until(lambda: has_status(site.admin, request, "completed"))
    assert (await site.admin.call("GET", f"{request}/certificate")).status_code == 200
    await until(lambda: is_ready(site))


async def test_a_fence_without_a_tombstone_says_so_and_goes_on_when_it_can_be_written(site: Site) -> None:
    await site.enrol("a", "b")
    evidence = site.coordinator.settings.evidence_path
    take_away(evidence)
    request = await file_erasure(site, "a")
    await assert_held(site, request, "fence")
    found = await site.admin.get(request)
    assert found["fenced_at"] is None
    give_back(evidence)
    await assert_goes_on(site, request)
    assert (evidence / "tombstones.jsonl").read_text().count("\n") == 1


async def test_a_full_disk_of_evidence_holds_requests_until_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    async with opened(tmp_path / "home", None, evidence_dir=small_disk / "evidence") as site:
        await site.enrol("a", "b")
        filler = small_disk / "filler"
        _fill(filler)
        request = await file_erasure(site, "a")
        await assert_held(site, request, "fence")
        assert "No space left" in (await site.admin.get(request))["reason"]
        filler.unlink()
        await assert_goes_on(site, request)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


async def test_an_operator_may_retry_a_fence_that_could_not_be_written(small_site: Site) -> None:
    site = small_site
    await site.enrol("a", "b")
    evidence = site.coordinator.settings.evidence_path
    take_away(evidence)
    request = await file_erasure(site, "a")
    await assert_held(site, request, "fence")
    give_back(evidence)
    await site.admin.call("POST", f"{request}/retry")
    await assert_goes_on(site, request)


async def test_a_certificate_that_cannot_be_signed_says_so_and_goes_on_by_itself(site: Site) -> None:
    a, b = await site.enrol("a", "b")
    run = await site.start_run(stop={"rounds": 1})
    await a.train(1.0)
    await b.train(2.0)
    await until(lambda: has_status(site.admin, f"/v1/runs/{run['id']}", "completed"))
    request = await file_erasure(site, "a")
    await until(lambda: has_status(site.admin, request, "executing"))  # b trains again
    openings = site.coordinator.settings.evidence_path / "openings"  # written before it is signed
    take_away(openings)
    await b.train(2.0)
    await until(lambda: has_status(site.admin, request, "requires_action"))
    assert (await site.admin.get(request))["reason"].startswith("its purge failed: the directory of evidence")
    give_back(openings)
    await assert_goes_on(site, request)


async def test_a_coordinator_whose_evidence_cannot_be_read_waits_for_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home, None) as site:
        await site.enrol("a", "b")
        await assert_goes_on(site, await file_erasure(site, "a"))
    evidence = home / "evidence"
    take_away(evidence)
    app = create_app(Coordinator(Settings(home=home, admin_token=SecretStr(ADMIN_TOKEN))))
    async with app.router.lifespan_context(app), connected(app) as http:
        response = await http.get("/readyz")
        assert response.status_code == 503 and "it cannot start" in response.json()["checks"]["coordinator"]
        assert code_of(await Actor(http, ADMIN_TOKEN).call("GET", "/v1/runs")) == "unavailable"
        give_back(evidence)
        await until(lambda: _answers(http))


async def _answers(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200
