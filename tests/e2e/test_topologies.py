"""Each topology over real processes and HTTP: train, forget in the middle of a round, join, forget twice, and forget
the newcomer after the end.

One coordinator and two worker processes serve all of them; each topology has a federation of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from lethe.cli import main
from tests.support.deployment import Deployment, wait_until

NAMES = [f"site-{letter}" for letter in "abcdef"]
NEWCOMER = NAMES[-1]
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "flat": {"kind": "flat"},
    "clusters": {"kind": "clusters", "num_clusters": 2, "assignment": "knot"},
    "bi_model": {"kind": "bi_model"},
    "tree": {"kind": "tree", "shape": "huffman"},
    "isolated": {"kind": "isolated"},
}
REQUESTS = "/v1/erasure-requests"
ROUNDS = 12
pytestmark = pytest.mark.timeout(300)


def run_spec(topology: str) -> dict[str, Any]:
    return {
        "name": topology.replace("_", "-"),
        "seed": 5,
        "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}},
        "local": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
        "clients": NAMES[:-1],
        "topology": TOPOLOGIES[topology],
        "stop": {"rounds": ROUNDS},
    }


@dataclass
class Federation:
    """One topology's run, and what was asked of it."""

    deployment: Deployment
    topology: str
    id: str
    key: Path
    run_id: str = ""
    requests: list[str] = field(default_factory=list)
    """Those that are carried out, in order."""
    erased: set[str] = field(default_factory=set)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self.deployment.admin() as admin:
            return admin.request(method, path, **options)

    def get(self, path: str) -> Any:
        response = self.call("GET", path)
        assert response.is_success, response.text
        return response.json()

    def file(self, name: str, key: str, **changes: Any) -> httpx.Response:
        body = {"federation_id": self.id, "subjects": [name], "recovery_rounds": 1, **changes}
        return self.call("POST", REQUESTS, json=body, headers={"Idempotency-Key": f"{self.topology}-{name}-{key}"})

    def forget(self, name: str, **changes: Any) -> dict[str, Any]:
        response = self.file(name, "first", **changes)
        assert response.status_code == 202, response.text
        self.requests.append(response.json()["id"])
        self.erased.add(name)
        return dict(response.json())

    # --- the steps ----------------------------------------------------------------------------------------------------

    def train(self) -> None:
        self.run_id = self.deployment.create_run(self.id, run_spec(self.topology), self.topology)
        wait_until(lambda: self.deployment.run(self.run_id)["round"] >= 1, 60, "a round is done", self.deployment.logs)

    def forget_in_the_middle_of_a_round(self, name: str) -> None:
        """Asked for twice: the second request is a duplicate that ends with the first. The workers stand still
        meanwhile, with tasks in their hands that they come back with after the fence; so no cohort reaches its end
        before the newcomer is there. Clusters take it in only when it is profiled, and then the cohort that took it in
        still lacks rounds, or a member whose erasure lets it train again."""
        fleets = [self.deployment.processes[f"fleet-{half}"] for half in (0, 1)]
        fleets[0].send(signal.SIGSTOP)
        try:
            wait_until(self.has_an_open_round, 60, "a round is half done", self.deployment.logs)
            fleets[1].send(signal.SIGSTOP)
            filed = self.forget(name, needs_approval=True)
            again = self.file(name, "again").json()
            assert again["duplicate_of"] == filed["id"]
            approved = self.call("POST", f"{REQUESTS}/{filed['id']}/approve")
            assert approved.is_success, approved.text
            self.wait_for(filed["id"], "fenced_at")
            self.check_served_models()
            self.join(NEWCOMER)
            fleets[NAMES.index(NEWCOMER) % 2].send(signal.SIGCONT)
            wait_until(self.has_profiled_everybody, 60, "the newcomer is profiled", self.deployment.logs)
        finally:
            for fleet in fleets:
                fleet.send(signal.SIGCONT)
        self.wait_for(again["id"], "completed_at")
        assert self.file(name, "late").json()["code"] == "already-erased"

    def join(self, name: str) -> None:
        joined = self.call("POST", f"/v1/runs/{self.run_id}/members", json={"clients": [name]})
        assert joined.is_success, joined.text

    def has_an_open_round(self) -> bool:
        return any(one["status"] == "open" for one in self.deployment.pages(f"/v1/runs/{self.run_id}/rounds"))

    def has_profiled_everybody(self) -> bool:
        cohorts = self.deployment.pages(f"/v1/runs/{self.run_id}/cohorts")
        return all(one["phase"] == "retired" for one in cohorts if one["kind"] == "profile")

    def forget_two_at_once(self, first: str, second: str) -> None:
        """The second request arrives while the first is carried out."""
        for name in (first, second):
            self.forget(name)
        for request in self.requests:
            self.wait_for(request, "completed_at")

    def forget_after_the_end(self, name: str) -> None:
        self.wait_for(self.forget(name)["id"], "completed_at")
        self.deployment.wait_for_run(self.run_id)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def wait_for(self, request: str, instant: str) -> None:
        def reached() -> bool:
            found = self.get(f"{REQUESTS}/{request}")
            assert found["status"] not in ("failed", "requires_action"), found["reason"]
            return found[instant] is not None

        wait_until(reached, 60, f"{instant} of {request}", self.deployment.logs)

    def check_served_models(self) -> None:
        """No served model has an erased client among its ancestors."""
        heads = [c["head"] for c in self.deployment.pages(f"/v1/runs/{self.run_id}/cohorts") if c["head"]]
        for head in heads:
            assert not self.erased & set(self.get(f"/v1/checkpoints/{head}/lineage")["clients"])

    def served_clients(self) -> set[str]:
        heads = [c["head"] for c in self.deployment.pages(f"/v1/runs/{self.run_id}/cohorts") if c["head"]]
        return {name for head in heads for name in self.get(f"/v1/checkpoints/{head}/lineage")["clients"]}


@pytest.fixture(scope="module")
def federations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Federation]]:
    """Enrolled and served, without runs."""
    with Deployment(tmp_path_factory.mktemp("topologies")) as deployment:
        deployment.start_coordinator()
        key = deployment.directory / "lethe.pub.pem"
        with deployment.admin() as admin:
            key.write_text(admin.get("/v1/erasure/discovery").json()["public_key"])
        ids, tokens, data = {}, {}, {}
        for topology in TOPOLOGIES:
            ids[topology], issued = deployment.enrol(topology.replace("_", "-"), NAMES)
            for number, name in enumerate(NAMES):
                tokens[f"{topology}/{name}"] = issued[name]
                data[f"{topology}/{name}"] = f"builtin:digits#part={number}/{len(NAMES)},seed=0"
        for half in (0, 1):
            deployment.start_fleet(f"fleet-{half}", dict(list(tokens.items())[half::2]), data)
        yield {topology: Federation(deployment, topology, id, key) for topology, id in ids.items()}


@pytest.fixture
def lethe(monkeypatch: pytest.MonkeyPatch, federations: dict[str, Federation]) -> Any:
    """Run the command against the deployment; gives the exit code."""
    deployment = next(iter(federations.values())).deployment
    monkeypatch.setenv("LETHE_URL", deployment.url())
    monkeypatch.setenv("LETHE_TOKEN_FILE", str(deployment.directory / "home" / "admin.token"))

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["lethe", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    return run


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_clients_are_forgotten_again_and_again(
    topology: str, federations: dict[str, Federation], lethe: Any, tmp_path: Path
) -> None:
    federation = federations[topology]
    federation.train()
    federation.forget_in_the_middle_of_a_round("site-a")
    federation.forget_two_at_once("site-b", "site-c")
    federation.deployment.wait_for_run(federation.run_id)
    assert NEWCOMER in federation.served_clients()
    federation.forget_after_the_end(NEWCOMER)

    federation.check_served_models()
    assert federation.served_clients() == {"site-d", "site-e"}
    certificates = [str(tmp_path / f"{request}.json") for request in federation.requests]
    for request, certificate in zip(federation.requests, certificates, strict=True):
        assert lethe("certificates", "get", request, "-o", certificate) == 0
        assert lethe("verify", certificate, "--key", str(federation.key)) == 0
    # Models of the earlier certificates are superseded by the later erasures: only the last can be replayed.
    assert lethe("verify", certificates[-1], "--key", str(federation.key), "--replay") == 0
