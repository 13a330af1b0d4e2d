"""Health, readiness, metrics, and the catalogue of problems."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from coordinator.api.app import create_app
from coordinator.api.auth import ALLOWED
from coordinator.api.openapi import text
from coordinator.api.problems import PROBLEMS
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store.database import Unavailable
from services.core.errors import CODES
from tests.integration.api.site import ADMIN_TOKEN, Actor, Site, code_of, connected

ROOT = Path(__file__).parents[3]


def test_every_code_has_a_status() -> None:
    assert PROBLEMS.keys() == CODES.keys()


def test_the_statuses_are_the_documented_ones() -> None:
    page = (ROOT / "docs" / "problems.md").read_text("utf-8")
    documented = re.findall(r"^\| `([a-z-]+)` \| (\d{3}) \| (yes|no) \|", page, re.MULTILINE)
    assert {code: (int(status), retry == "yes") for code, status, retry in documented} == {
        code: (kind.status, kind.retryable) for code, kind in PROBLEMS.items()
    }


def test_what_may_be_retried_says_when() -> None:
    assert all(kind.retryable == (kind.retry_after_s is not None) for kind in PROBLEMS.values())


def test_the_committed_contract_is_that_of_the_code() -> None:
    assert (ROOT / "openapi" / "v1.json").read_text("utf-8") == text()


def test_every_operation_documents_its_problems() -> None:
    for path, operations in json.loads(text())["paths"].items():
        for method, operation in operations.items():
            if path.startswith("/v1/"):
                assert {"422", "500", "503"} <= operation["responses"].keys(), (method, path)
            for status, response in operation["responses"].items():
                if int(status) >= 400 and path != "/readyz":
                    assert response["content"].keys() == {"application/problem+json"}, (method, path, status)


def test_every_role_may_do_something() -> None:
    assert set().union(*ALLOWED.values()) == {"viewer", "operator", "compliance", "admin", "client"}


@pytest.mark.anyio
async def test_each_problem_type_is_served(small_site: Site) -> None:
    for code in CODES:
        response = await small_site.http.get(f"/v1/problems/{code}")
        assert response.json()["title"] == CODES[code]
    assert code_of(await small_site.http.get("/v1/problems/unheard-of")) == "not-found"


@pytest.mark.anyio
async def test_unknown_addresses_and_methods_are_problems_too(small_site: Site) -> None:
    assert code_of(await small_site.http.get("/v2/runs")) == "not-found"
    response = await small_site.http.delete("/v1/runs")
    assert (response.status_code, code_of(response)) == (405, "method-not-allowed")
    assert response.headers["allow"]


@pytest.mark.anyio
async def test_a_healthy_coordinator_says_so_and_counts(site: Site) -> None:
    assert (await site.http.get("/healthz")).json()["status"] == "ok"
    assert (await site.http.get("/readyz")).json()["status"] == "ok"
    (a,) = await site.enrol("a")
    await site.start_run()
    await a.claim()
    metrics = (await site.http.get("/metrics")).text
    for line in (
        'lethe_runs{status="running"} 1.0',
        'lethe_open_tasks{status="leased"} 1.0',
        'lethe_events_total{type="TaskLeased"} 1.0',
        'lethe_requests_total{route="/v1/tasks/claim",status="200"} 1.0',
        "lethe_waiting_polls 0.0",
    ):
        assert line in metrics, line


@pytest.mark.anyio
async def test_nothing_is_served_before_the_schema_is_current(tmp_path: Path) -> None:
    app = create_app(Coordinator(Settings(home=tmp_path, admin_token=SecretStr(ADMIN_TOKEN))))
    async with app.router.lifespan_context(app), connected(app) as http:
        assert (await http.get("/healthz")).status_code == 200
        ready = await http.get("/readyz")
        assert ready.status_code == 503 and "lethe db upgrade" in ready.text
        response = await Actor(http, ADMIN_TOKEN).call("GET", "/v1/runs")
        assert (response.status_code, code_of(response)) == (503, "unavailable")
        assert response.headers["retry-after"] == "1"
        assert (await http.get("/metrics")).status_code == 200


@pytest.mark.anyio
async def test_a_database_that_is_away_is_a_503_that_may_be_retried(
    small_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("connection refused at 10.0.0.7")

    for use in ("read", "write"):
        monkeypatch.setattr(small_site.coordinator.database, use, away)
    response = await small_site.admin.call("GET", "/v1/runs")
    assert (response.status_code, code_of(response)) == (503, "unavailable")
    assert response.json()["retryable"] and "10.0.0.7" not in response.text
    assert (await small_site.http.get("/readyz")).status_code == 503
    assert (await small_site.http.get("/metrics")).status_code == 200


@pytest.mark.anyio
async def test_a_bug_is_a_500_that_tells_nothing(small_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("the secret inside")

    monkeypatch.setattr("coordinator.store.queries.runs", broken)
    response = await small_site.admin.call("GET", "/v1/runs")
    assert (response.status_code, code_of(response)) == (500, "internal")
    assert "secret" not in response.text
