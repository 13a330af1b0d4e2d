"""Several jobs on one real coordinator with real workers: each is served as the game says, also when the coordinator
is killed in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.audit.verification import check
from tests.support.deployment import Deployment, wait_until

NAMES = [f"site-{letter}" for letter in "abcdefghij"]
INCENTIVES = {"prices": {"megabyte": 15.0}}
REQUESTS = "/v1/erasure-requests"
pytestmark = pytest.mark.timeout(400)


def spec(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "seed": 5,
        "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}},
        "local": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
        "stop": {"rounds": 3},
        "lease_s": 2.0,
        **changes,
    }


@dataclass
class Federation:
    deployment: Deployment
    id: str
    tokens: dict[str, str]

    def work(self) -> None:
        """Start the workers, ten in one process."""
        if "fleet" in self.deployment.processes:
            self.deployment.restart("fleet")
            return
        parts = {name: f"builtin:digits#part={number}/{len(NAMES)},seed=0" for number, name in enumerate(NAMES)}
        self.deployment.start_fleet("fleet", self.tokens, parts)

    def rest(self) -> None:
        self.deployment.processes["fleet"].end()

    def served(self, run_id: str) -> list[set[str]]:
        """Whose updates are in the model of each round, of those that are served."""
        found = []
        for model in self.deployment.pages(f"/v1/runs/{run_id}/checkpoints"):
            if model["kind"] == "aggregate" and model["superseded_by"] is None:
                with self.deployment.admin() as admin:
                    lineage = admin.get(f"/v1/checkpoints/{model['id']}/lineage").json()
                found.append({one["client_name"] for one in lineage["contributions"]})
        return found

    def periods(self) -> list[dict[str, Any]]:
        """The newest first."""
        return list(self.deployment.pages(f"/v1/federations/{self.id}/periods"))

    def forget(self, name: str, reward: float) -> str:
        body = {"federation_id": self.id, "subjects": [name], "method": "retrain", "reward": reward}
        with self.deployment.admin() as admin:
            filed = admin.post(REQUESTS, json=body, headers={"Idempotency-Key": name})
            assert filed.status_code == 202, filed.text
            path = f"{REQUESTS}/{filed.json()['id']}"
            wait_until(lambda: bool(admin.get(path).json()["fenced_at"]), 30, "the fence", self.deployment.logs)
        return str(filed.json()["id"])

    def wait_for_certificate(self, erasure_id: str) -> dict[str, Any]:
        def completed() -> bool:
            (found,) = [one for one in self.deployment.pages(REQUESTS) if one["id"] == erasure_id]
            assert found["status"] != "failed", found["reason"]  # it may ask for workers that are still starting
            return bool(found["status"] == "completed")

        wait_until(completed, 120, "the request is done", self.deployment.logs)
        with self.deployment.admin() as admin:
            key = admin.get("/v1/erasure/discovery").json()["public_key"]
            envelope = admin.get(f"{REQUESTS}/{erasure_id}/certificate").content
        assert check(envelope, key.encode()).valid
        return dict(json.loads(envelope))


@contextmanager
def federation(directory: Path) -> Iterator[Federation]:
    with Deployment(directory, settings={"LETHE_KERNEL_LEASE_S": "1"}) as deployment:
        deployment.start_coordinator()
        with deployment.admin() as admin:
            wanted = {"name": "hospitals", "allocation": "game", "incentives": INCENTIVES}
            federation_id = admin.post("/v1/federations", json=wanted).json()["id"]
            tokens = {}
            for number, name in enumerate(NAMES):
                costs = {"samples": 80 + 20 * (number % 3), "seconds": 10.0, "bytes": 1_000_000, "stored_bytes": 0}
                body = {"name": name, "resources": costs}
                made = admin.post(f"/v1/federations/{federation_id}/clients", json=body)
                tokens[name] = made.json()["token"]
        yield Federation(deployment, federation_id, tokens)


def test_two_jobs_and_ten_workers_are_served_by_the_shares_of_the_game(tmp_path: Path) -> None:
    with federation(tmp_path) as f:
        rewards = {"first": 120.0, "second": 100.0}
        runs = [f.deployment.create_run(f.id, spec(name, reward=r), name) for name, r in rewards.items()]
        f.work()
        for run_id in runs:
            f.deployment.wait_for_run(run_id)

        newest = f.periods()[0]
        for place, run_id in enumerate(runs):
            share = sum(len(one["clients"]) * one["shares"][place] for one in newest["populations"])
            allotted = {name for name, job in newest["serves"].items() if job == run_id}
            assert f.served(run_id)[1:] == [allotted, allotted], "from the second round on, both are there"
            assert abs(len(allotted) - share) <= 1
        earned = f.deployment.run_command(*f_options(f.deployment), "incentives", "ledger")
        assert all(name in earned for name in NAMES)


def f_options(deployment: Deployment) -> list[str]:
    token = deployment.directory / "home" / "admin.token"
    return ["--url", deployment.url(), "--token-file", str(token)]


def two_erasures(directory: Path, *, kill: bool) -> dict[str, dict[int, str]]:
    """Forget two clients of two runs at the same time; the digests of what the runs then serve, by round."""
    with federation(directory) as f:
        everybody = NAMES[2:]
        clients = {"first": [NAMES[0], *everybody], "second": [NAMES[1], *everybody]}
        runs = {name: f.deployment.create_run(f.id, spec(name, clients=who), name) for name, who in clients.items()}
        f.work()
        for run_id in runs.values():
            f.deployment.wait_for_run(run_id)
        f.rest()  # both requests are there before anybody trains for either

        erasures = [f.forget(NAMES[0], reward=120.0), f.forget(NAMES[1], reward=100.0)]
        assert [job["id"] for job in f.periods()[0]["jobs"]] == erasures
        f.work()
        if kill:
            first = runs["first"]
            wait_until(lambda: len(f.served(first)) >= 1, 60, "a round is trained again", f.deployment.logs)
            f.deployment.processes["coordinator"].end()
            f.deployment.restart("coordinator")
        for erasure_id in erasures:
            f.wait_for_certificate(erasure_id)
        for run_id in runs.values():
            f.deployment.wait_for_run(run_id)
        served = {name: f.served(run_id) for name, run_id in runs.items()}
        assert not served["first"][-1] & served["second"][-1], "nobody serves both"
        assert served["first"][-1] | served["second"][-1] == set(everybody)
        return {name: f.deployment.digests(run_id) for name, run_id in runs.items()}


def test_two_open_erasures_end_with_the_same_digests_when_the_coordinator_is_killed(tmp_path: Path) -> None:
    assert two_erasures(tmp_path / "killed", kill=True) == two_erasures(tmp_path / "undisturbed", kill=False)
