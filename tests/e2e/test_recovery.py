"""PGA and then Imba-ULRc over real processes and HTTP, left alone and with everything killed in the middle."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.core import digests
from services.data.sources import load
from services.tensors import codec
from tests.support.deployment import Deployment, wait_until

NAMES = [f"site-{letter}" for letter in "abcd"]
LEAVER = NAMES[0]
ROUNDS = 3
PGA = {"radius": 50.0, "stop_accuracy": 0.2, "max_epochs": 2}
REQUESTS = "/v1/erasure-requests"
pytestmark = pytest.mark.timeout(300)


@dataclass
class Federation:
    deployment: Deployment
    id: str
    fleet: str
    run_id: str = ""

    def train(self, data: Path) -> None:
        digest = digests.of_bytes(data.read_bytes())
        spec = {
            "name": "recovery",
            "seed": 5,
            "model": {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}},
            "local": {"epochs": 2, "batch_size": 32, "learning_rate": 0.1},
            "validation": {"data": digest},
            "stop": {"rounds": 2},
        }
        with self.deployment.admin() as admin:
            stored = admin.put(f"/v1/blobs/{digest}?federation_id={self.id}", content=data.read_bytes())
            assert stored.is_success, stored.text
        self.run_id = self.deployment.create_run(self.id, spec, self.fleet)
        self.deployment.wait_for_run(self.run_id)

    def body(self, **changes: Any) -> dict[str, Any]:
        return {
            "federation_id": self.id,
            "subjects": [LEAVER],
            "guarantee": "approximate",
            "method": "pga",
            "params": PGA,
            "recovery_rounds": ROUNDS,
            "recovery": {"method": "imba_ulrc", "params": {"encoder_epochs": 40}},
            **changes,
        }

    def file(self) -> str:
        with self.deployment.admin() as admin:
            filed = admin.post(REQUESTS, json=self.body(), headers={"Idempotency-Key": self.fleet})
        assert filed.status_code == 202, filed.text
        assert filed.json()["recovery"] == self.body()["recovery"]
        return str(filed.json()["id"])

    def recovered(self) -> list[str]:
        """Digests of what was published since the erasure."""
        found = self.deployment.pages(f"/v1/runs/{self.run_id}/checkpoints")
        return [one["digest"] for one in sorted(found, key=lambda one: one["round"]) if one["epoch"] == 1]

    def wait(self, erasure_id: str) -> dict[str, Any]:
        def completed() -> bool:
            with self.deployment.admin() as admin:
                found = admin.get(f"{REQUESTS}/{erasure_id}").json()
            assert found["status"] != "failed", found["reason"]
            return bool(found["status"] == "completed")

        wait_until(completed, 120, "the request completes", self.deployment.logs)
        with self.deployment.admin() as admin:
            return dict(admin.get(f"{REQUESTS}/{erasure_id}").json())

    def kill_workers_that_generate(self) -> None:
        """In the first round of the recovery, in which clients train their encoders and make samples."""
        path = f"/v1/runs/{self.run_id}/tasks?limit=200"

        def is_generating() -> bool:
            with self.deployment.admin() as admin:
                tasks = admin.get(path).json()["items"]
            num_models = len(self.recovered())
            return num_models > 1 or (num_models == 1 and any(one["status"] == "leased" for one in tasks))

        wait_until(is_generating, 60, "clients make samples", self.deployment.logs)
        self.deployment.processes[self.fleet].end()
        self.deployment.restart(self.fleet)

    def kill_everything(self) -> None:
        """In the middle of the recovery: after its first round, while the second is trained."""
        wait_until(lambda: len(self.recovered()) >= 2, 60, "the first round of the recovery", self.deployment.logs)
        for name in (self.fleet, "coordinator"):
            self.deployment.processes[name].end()
        for name in ("coordinator", self.fleet):
            self.deployment.restart(name)


def started(deployment: Deployment, fleet: str) -> Federation:
    federation_id, tokens = deployment.enrol(fleet, NAMES)
    data = {name: f"builtin:digits#part={n}/{len(NAMES)},how=by-class:0.7,seed=0" for n, name in enumerate(NAMES)}
    deployment.start_fleet(fleet, tokens, data)
    return Federation(deployment, federation_id, fleet)


def test_pga_and_imba_ulrc_end_with_the_same_digests_when_everything_is_killed(tmp_path: Path) -> None:
    data, digits = tmp_path / "validation.safetensors", load("digits")
    codec.write_file(data, {"x": digits.x_test, "y": digits.y_test})
    with Deployment(tmp_path / "deployment") as deployment:
        deployment.start_coordinator()
        ended = {}
        for name in ("calm", "stormy"):
            federation = started(deployment, name)
            federation.train(data)
            shows_its_cost(federation)
            erasure_id = federation.file()
            if name == "stormy":
                federation.kill_workers_that_generate()
                federation.kill_everything()
            done = federation.wait(erasure_id)
            deployment.wait_for_run(federation.run_id)
            ended[name] = federation.recovered()
            says_what_it_was_about(federation, done["id"])
            deployment.processes[name].end()
        assert len(ended["calm"]) == 1 + ROUNDS and ended["stormy"] == ended["calm"]
        leftovers = list((tmp_path / "deployment").rglob("*.sealed"))
        assert not leftovers, "what clients made is in no file"


def shows_its_cost(federation: Federation) -> None:
    """The preview counts the recovery, and refuses one that cannot be."""
    with federation.deployment.admin() as admin:
        shown = admin.post(f"{REQUESTS}:preview", json=federation.body()).json()
        (pga,) = [one for one in shown["options"] if one["method"] == "pga"]
        assert (shown["recovery"], shown["chosen"]) == ("imba_ulrc", "pga")
        assert [cohort["recovery_rounds"] for cohort in pga["cohorts"]] == [ROUNDS]
        assert pga["client_work"] > pga["client_updates_to_redo"] > 0
        unknown = admin.post(f"{REQUESTS}:preview", json=federation.body(recovery={"method": "magic", "params": {}}))
        assert unknown.status_code == 409 and "imba_ulrc" in unknown.json()["detail"], unknown.text


def says_what_it_was_about(federation: Federation, erasure_id: str) -> None:
    with federation.deployment.admin() as admin:
        path = f"/v1/runs/{federation.run_id}/events?limit=200"
        events = admin.get(path, headers={"Accept": "application/json"}).json()["items"]
        (found,) = [one for one in events if one["type"] == "ClassFound"]
        assert found["data"]["recovery"] == "imba_ulrc" and "lost" in found["data"]["reason"]
        envelope = json.loads(admin.get(f"{REQUESTS}/{erasure_id}/certificate").content)
    predicate = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
    assert "recovered-class" in {one["aspect"] for one in predicate["still_shaped_by"]}
    assert predicate["method"]["parameters"]["recovery"]["method"] == "imba_ulrc"
