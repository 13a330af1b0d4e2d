"""FedEraser with k-center to select who calibrates, over real processes. Killed in the middle of the profile and of a
calibration round, it ends with the same models as one that was left alone."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.audit.verification import check
from tests.support.deployment import Deployment, wait_until

NAMES = [f"site-{letter}" for letter in "abcdef"]
REQUESTS = "/v1/erasure-requests"
SPEC: dict[str, Any] = {
    "name": "selected",
    "seed": 3,
    "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}},
    "local": {"epochs": 2, "batch_size": 32, "learning_rate": 0.1},
    "training": {"algorithm": "fedavg", "clients_per_round": 3},
    "stop": {"rounds": 4},
}
pytestmark = pytest.mark.timeout(300)


class Erased:
    """A run on a real deployment, of which one client is erased."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        deployment.start_coordinator()
        self.federation_id, tokens = deployment.enrol("selection", NAMES)
        data = {name: f"builtin:digits#part={number}/{len(NAMES)},seed=0" for number, name in enumerate(NAMES)}
        for half in (0, 1):
            deployment.start_fleet(f"fleet-{half}", dict(list(tokens.items())[half::2]), data)
        self.run_id = deployment.create_run(self.federation_id, SPEC)
        deployment.wait_for_run(self.run_id)

    def file(self) -> dict[str, Any]:
        body = {
            "federation_id": self.federation_id,
            "subjects": [self.leaver()],
            "guarantee": "approximate",
            "method": "federaser",
            "params": {"participants": "policy", "selection": {"policy": "k_center", "profile_deadline_s": 60}},
            "recovery_rounds": 1,
        }
        with self.deployment.admin() as admin:
            shown = admin.post(f"{REQUESTS}:preview", json=body).json()
            (option,) = [one for one in shown["options"] if one["method"] == "federaser"]
            assert option["profiles_to_make"] == len(NAMES) - 1
            filed = admin.post(REQUESTS, json=body, headers={"Idempotency-Key": "once"})
            assert filed.status_code == 202, filed.text
            return dict(filed.json())

    def leaver(self) -> str:
        """One who took part in the second round."""
        tasks = self.deployment.pages(f"/v1/runs/{self.run_id}/tasks")
        return min(str(task["client_name"]) for task in tasks if task["round"] == 2)

    def rounds(self) -> list[tuple[str, int, int]]:
        with contextlib.suppress(httpx.TransportError):
            found = self.deployment.pages(f"/v1/runs/{self.run_id}/rounds")
            return [(one["kind"], one["epoch"], one["number"]) for one in found]
        return []

    def wait_for_round(self, kind: str, number: int) -> None:
        what = f"{kind} round {number}"
        wait_until(lambda: (kind, 1, number) in self.rounds(), 60, what, self.deployment.logs)

    def kill(self, name: str) -> None:
        self.deployment.processes[name].end()
        self.deployment.restart(name)

    def completed(self, erasure_id: str) -> None:
        def is_completed() -> bool:
            with contextlib.suppress(httpx.TransportError), self.deployment.admin() as admin:
                found = admin.get(f"{REQUESTS}/{erasure_id}").json()
                assert found["status"] not in ("failed", "requires_action"), found["reason"]
                return bool(found["status"] == "completed")
            return False

        wait_until(is_completed, 120, "the client is forgotten", self.deployment.logs)
        self.deployment.wait_for_run(self.run_id)

    def digests(self) -> dict[tuple[int, int], str]:
        models = self.deployment.pages(f"/v1/runs/{self.run_id}/checkpoints")
        return {(model["epoch"], model["round"]): model["digest"] for model in models}


def test_a_killed_erasure_selects_the_same_clients_and_ends_with_the_same_models(tmp_path: Path) -> None:
    with Deployment(tmp_path / "alone") as deployment:
        alone = Erased(deployment)
        request = alone.file()
        alone.completed(request["id"])
        expected, asked = alone.digests(), sorted(alone.rounds())
        with deployment.admin() as admin:
            key = admin.get("/v1/erasure/discovery").json()["public_key"]
            verdict = check(admin.get(f"{REQUESTS}/{request['id']}/certificate").content, key.encode())
            events = admin.get(
                f"/v1/runs/{alone.run_id}/events?limit=200", headers={"Accept": "application/json"}
            ).json()["items"]
        assert verdict.valid, verdict.checks
        ordered = [event["data"] for event in events if event["type"] == "MembersOrdered"]
        assert [one["round"] for one in ordered] == [2, 3, 4] and {one["policy"] for one in ordered} == {"k_center"}
    assert [one for one in asked if one[1] == 1] == [("profile", 1, 2), *(("train", 1, n) for n in (2, 3, 4, 5))]

    with Deployment(tmp_path / "killed", settings={"LETHE_KERNEL_LEASE_S": "1"}) as deployment:
        killed = Erased(deployment)
        assert killed.leaver() == alone_leaver(expected, killed)
        request = killed.file()
        killed.wait_for_round("profile", 2)
        killed.kill("coordinator")
        killed.wait_for_round("train", 3)
        killed.kill("fleet-0")
        killed.kill("coordinator")
        killed.completed(request["id"])
        assert killed.digests() == expected
        assert sorted(killed.rounds()) == asked


def alone_leaver(expected: dict[tuple[int, int], str], killed: Erased) -> str:
    """The same one, if training went the same way."""
    trained = {place: digest for place, digest in expected.items() if place[0] == 0}
    assert {place: digest for place, digest in killed.digests().items() if place[0] == 0} == trained
    return killed.leaver()
