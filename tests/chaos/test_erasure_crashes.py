"""The coordinator dies in every state of an erasure: it resumes, with exactly one certificate, and that verifies."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from coordinator.keys.directory import DirectoryKeys
from coordinator.keys.port import client_key
from services.audit.verification import Beside, check
from tests.support.agents import MODEL, Agents, blob
from tests.support.deployment import Deployment, wait_until
from tests.support.servers import PostgresServer

REQUESTS = "/v1/erasure-requests"
STAYING = ["site-a", "site-b"]
CRASH_POINTS = [
    "erasure.after-tombstone",
    "erasure.after-list",
    "erasure.after-fence",
    "erasure.in-recovery",
    "erasure.after-record",
    "erasure.after-purge",
    "erasure.after-opening",
    "erasure.after-signing",
]
WHERE = [("sqlite", point) for point in CRASH_POINTS] + [("postgres", "erasure.after-purge")]
SOON = {"LETHE_KERNEL_LEASE_S": "1"}


@dataclass
class Site:
    """A coordinator process with agents that stay, and clients to be forgotten."""

    deployment: Deployment
    federation_id: str

    def complete_run(self, *names: str) -> str:
        digest, data = blob(MODEL)
        with self.deployment.admin() as admin:
            path = f"/v1/blobs/{digest}?federation_id={self.federation_id}"
            assert admin.put(path, content=data).is_success
        spec = {
            "name": "crash",
            "model": {"name": "custom"},
            "init": digest,
            "clients": names,
            "stop": {"rounds": 2},
            "retention": {"updates": "none"},
            "history": {"updates": {}},
        }
        run_id = self.deployment.create_run(self.federation_id, spec, key="-".join(names))
        self.deployment.wait_for_run(run_id)
        return run_id

    def file(self, name: str, **changes: Any) -> None:
        """Whether or not the coordinator lives long enough to answer."""
        body = {"federation_id": self.federation_id, "subjects": [name], **changes}
        with self.deployment.admin() as admin, contextlib.suppress(httpx.TransportError):
            assert admin.post(REQUESTS, json=body, headers={"Idempotency-Key": name}).status_code == 202

    def wait_for_earlier_steps(self) -> None:
        """A step of an earlier request that was cut short is done again when its lease runs out. It must not be what
        comes to the next crash point, before anything was filed."""
        wait_until(self._has_no_open_step, 120, "steps of earlier requests end", self.deployment.logs)

    def _has_no_open_step(self) -> bool:
        with self.deployment.admin() as admin:
            found = [line for line in admin.get("/metrics").text.splitlines() if line.startswith("lethe_open_jobs{")]
        return not any(('"fence"' in line or '"purge"' in line) and not line.endswith(" 0.0") for line in found)

    def wait_for_death(self) -> None:
        coordinator = self.deployment.processes["coordinator"]
        wait_until(lambda: not coordinator.is_alive, 60, "the coordinator dies there", self.deployment.logs)

    def request_for(self, name: str) -> dict[str, Any]:
        return next(one for one in self.deployment.pages(REQUESTS) if one["subjects"] == [name])

    def _is_completed(self, name: str) -> bool:
        return bool(self.request_for(name)["status"] == "completed")

    def wait_for_certificate(self, name: str) -> dict[str, Any]:
        """The completed request; its one certificate verifies against the published key, with its list and opening."""
        wait_until(lambda: self._is_completed(name), 120, "the request completes", self.deployment.logs)
        path = f"{REQUESTS}/{self.request_for(name)['id']}"
        with self.deployment.admin() as admin:
            key = admin.get("/v1/erasure/discovery").json()["public_key"]
            artefacts = io.BytesIO(admin.get(f"{path}/certificate/artefacts").content)
            beside = Beside(list=artefacts, client=name, opening=admin.get(f"{path}/opening").content)
            verdict = check(admin.get(f"{path}/certificate").content, key.encode(), beside=beside)
            assert verdict.valid and verdict.complete, verdict.checks
            events = admin.get(f"{path}/events?limit=200", headers={"Accept": "application/json"}).json()["items"]
        assert [event["type"] for event in events].count("CertificateIssued") == 1
        return self.request_for(name)

    def sealed(self, run_id: str) -> set[tuple[int, str]]:
        """(round, client) of the copies in the run's history."""
        found = self.deployment.pages(f"/v1/runs/{run_id}/history/updates")
        return {(one["round"], one["client_name"]) for one in found}

    def wait_for_history(self, run_id: str, *names: str) -> None:
        wanted = {(number, name) for number in (1, 2) for name in names}
        wait_until(lambda: self.sealed(run_id) == wanted, 30, "both rounds are sealed", self.deployment.logs)

    def has_key(self, name: str) -> bool:
        clients = self.deployment.pages(f"/v1/federations/{self.federation_id}/clients")
        (client_id,) = [client["id"] for client in clients if client["name"] == name]
        keys = DirectoryKeys(self.deployment.directory / "home" / "evidence" / "keys")
        return keys.find(client_key(UUID(client_id))) is not None

    def models(self, run_id: str) -> list[dict[str, Any]]:
        return list(self.deployment.pages(f"/v1/runs/{run_id}/checkpoints"))


@contextlib.contextmanager
def started(directory: Path, names: list[str], database_url: str | None = None) -> Iterator[Site]:
    with Deployment(directory, database_url, settings=SOON) as deployment:
        deployment.start_coordinator()
        federation_id, tokens = deployment.enrol("crashes", names)
        with Agents(deployment.url(), tokens):
            yield Site(deployment, federation_id)


@pytest.fixture(scope="module")
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Site]]:
    """By back end, each with a client to forget for each crash point."""
    made: dict[str, Site] = {}
    with contextlib.ExitStack() as stack:

        def site(backend: str) -> Site:
            if backend not in made:
                url = None
                if backend == "postgres":
                    server: PostgresServer = request.getfixturevalue("postgres_server")
                    url = server.new_database()
                names = [*STAYING, *(_leaver(point) for where, point in WHERE if where == backend)]
                made[backend] = stack.enter_context(started(tmp_path_factory.mktemp(backend), names, url))
            return made[backend]

        yield site


def _leaver(crash_at: str) -> str:
    return crash_at.replace(".", "-")


@pytest.mark.parametrize(("backend", "crash_at"), WHERE)
def test_an_erasure_survives_a_kill_at_this_point(
    sites: Callable[[str], Site], backend: str, crash_at: str, tmp_path: Path
) -> None:
    site, leaver = sites(backend), _leaver(crash_at)
    run_id = site.complete_run(leaver, *STAYING)
    site.wait_for_earlier_steps()
    site.deployment.processes["coordinator"].end()
    site.deployment.start_coordinator(LETHE_CRASH_AT=crash_at)
    site.file(leaver)
    site.wait_for_death()
    site.deployment.restart("coordinator")
    done = site.wait_for_certificate(leaver)
    assert done["lines"] and all(line["done_at"] for line in done["lines"])
    site.deployment.wait_for_run(run_id)
    superseded = [model for model in site.models(run_id) if model["superseded_by"]]
    assert [(model["round"], model["superseded_by"]) for model in superseded] == [(1, done["id"]), (2, done["id"])]
    assert all(model["stored"] == (model not in superseded) for model in site.models(run_id))


@pytest.mark.parametrize("crash_at", ["erasure.after-fence", "erasure.after-signing"])
def test_a_database_from_before_the_erasure_is_fenced_again_before_it_serves(crash_at: str, tmp_path: Path) -> None:
    """Its blobs are all there still, or were purged meanwhile."""
    with started(tmp_path / "site", [*STAYING, "leaver"]) as site:
        deployment = site.deployment
        run_id = site.complete_run("leaver", *STAYING)
        site.wait_for_history(run_id, "leaver", *STAYING)
        assert site.has_key("leaver")
        deployment.processes["coordinator"].end(signal.SIGTERM)
        database, backup = deployment.directory / "home" / "lethe.db", tmp_path / "backup.db"
        shutil.copy(database, backup)

        deployment.start_coordinator(LETHE_CRASH_AT=crash_at)
        tainted = site.models(run_id)[1:]
        site.file("leaver")
        site.wait_for_death()
        (tombstone,) = map(json.loads, (database.parent / "evidence" / "tombstones.jsonl").read_text().splitlines())
        for leftover in database.parent.glob("lethe.db-*"):
            leftover.unlink()
        shutil.copy(backup, database)

        deployment.restart("coordinator")
        request = site.request_for("leaver")
        assert request["fenced_at"] is not None
        assert request["requested_by"] == tombstone["entry"]["requested_by"]
        assert request["requested_by"].startswith("credential:")
        with deployment.admin() as admin:
            for model in tainted:
                assert admin.get(f"/v1/checkpoints/{model['id']}/model").status_code == 410
                assert admin.get(f"/v1/blobs/{model['digest']}?federation_id={site.federation_id}").status_code == 410
        site.wait_for_certificate("leaver")
        deployment.wait_for_run(run_id)
        site.wait_for_history(run_id, *STAYING)
        assert not site.has_key("leaver")
        with deployment.admin() as admin:
            for model in site.models(run_id):
                lineage = admin.get(f"/v1/checkpoints/{model['id']}/lineage").json()
                assert model["stored"] == ("leaver" not in lineage["clients"])
