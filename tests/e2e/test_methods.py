"""Each approximate method over real processes and HTTP: train, forget by it, audit, certificate.

One coordinator and two worker processes serve all of them; each method has a federation of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from services.audit.verification import check
from tests.support.deployment import Deployment, wait_until

NAMES = [f"site-{letter}" for letter in "abcd"]
LEAVER = NAMES[0]
METHODS: dict[str, dict[str, Any]] = {
    "federaser": {},
    "pga": {"max_epochs": 1},
    "fedforget": {"rounds": 1, "epochs": 1},
    "fedrecovery": {},
    "not": {},
    "fudp": {"forget_class": 3},
    "sifu": {},
}
MODELS: dict[str, str] = {"fudp": "cnn"}
"""Those that need another model than an MLP."""
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "fudp": [
        ({"params": {"forget_class": 10}}, "there is no class 10: the model's classes are 0 to 9"),
        ({"params": {"forget_class": -1}}, "forget_class"),
        ({"params": {}}, "forget_class"),
    ],
    "not": [({"method": "fudp", "params": {"forget_class": 3}}, "model mlp has none")],
}
"""What is said to requests that cannot be carried out."""
REQUESTS = "/v1/erasure-requests"
AUDIT = {
    "thresholds": {"max_remaining_accuracy_drop": 1.0, "min_samples": 1},
    "references": [{"remaining_accuracy": 1.0}],
    "num_shadows": 2,
}
"""Two rounds on digits leave nothing to be found: whatever is asked of the leaver's figures would say nothing."""
pytestmark = pytest.mark.timeout(300)


@dataclass
class Federation:
    deployment: Deployment
    method: str
    id: str
    leaver_token: str

    def train(self) -> str:
        spec = {
            "name": self.method,
            "seed": 5,
            "model": {"name": MODELS.get(self.method, "mlp"), "params": {"input_shape": [8, 8], "num_classes": 10}},
            "local": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
            "history": {"distances": True, "residuals": True, "updates": {}},
            "retention": {"updates": "none"},
            "stop": {"rounds": 2},
        }
        run_id = self.deployment.create_run(self.id, spec, self.method)
        self.deployment.wait_for_run(run_id)
        return run_id

    def body(self, **changes: Any) -> dict[str, Any]:
        return {
            "federation_id": self.id,
            "subjects": [LEAVER],
            "guarantee": "approximate",
            "method": self.method,
            "params": METHODS[self.method],
            "recovery_rounds": 1,
            "audit": AUDIT,
            **changes,
        }

    def refused(self, **changes: Any) -> tuple[int, str]:
        with self.deployment.admin() as admin:
            answer = admin.post(REQUESTS, json=self.body(**changes), headers={"Idempotency-Key": str(changes)})
        assert answer.headers["Content-Type"] == "application/problem+json", answer.text
        return answer.status_code, answer.json()["detail"]

    def previewed(self) -> dict[str, Any]:
        """What the preview says of the method."""
        with self.deployment.admin() as admin:
            shown = admin.post(f"{REQUESTS}:preview", json=self.body()).json()
        assert shown["chosen"] == self.method, shown
        return dict(next(one for one in shown["options"] if one["method"] == self.method))

    def forget(self) -> dict[str, Any]:
        body = self.body()
        with self.deployment.admin() as admin:
            filed = admin.post(REQUESTS, json=body, headers={"Idempotency-Key": self.method})
            assert filed.status_code == 202, filed.text
            path = f"{REQUESTS}/{filed.json()['id']}"

            def completed() -> bool:
                found = admin.get(path).json()
                assert found["status"] not in ("failed", "requires_action"), found["reason"]
                return bool(found["status"] == "completed")

            wait_until(completed, 60, f"{self.method} is done", self.deployment.logs)
            return dict(admin.get(path).json())

    def leaver_is_shut_out(self) -> bool:
        """What a token stands for is remembered for two seconds; nothing is granted meanwhile."""
        headers = {"Authorization": f"Bearer {self.leaver_token}"}
        claimed = httpx.post(f"{self.deployment.url()}/v1/tasks/claim", headers=headers, timeout=10)
        assert claimed.status_code in (204, 401, 403), claimed.text
        return claimed.status_code != 204


@pytest.fixture(scope="module")
def federations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Federation]]:
    with Deployment(tmp_path_factory.mktemp("methods")) as deployment:
        deployment.start_coordinator()
        found, tokens, data = {}, {}, {}
        for method in METHODS:
            federation_id, issued = deployment.enrol(method, NAMES)
            found[method] = Federation(deployment, method, federation_id, issued[LEAVER])
            for number, name in enumerate(NAMES):
                tokens[f"{method}/{name}"] = issued[name]
                data[f"{method}/{name}"] = f"builtin:digits#part={number}/{len(NAMES)},seed=0"
        for half in (0, 1):
            deployment.start_fleet(f"fleet-{half}", dict(list(tokens.items())[half::2]), data)
        yield found


@pytest.mark.parametrize("method", METHODS)
def test_a_client_is_forgotten_by_this_method(method: str, federations: dict[str, Federation]) -> None:
    federation = federations[method]
    run_id = federation.train()
    for changes, said in REFUSED.get(method, []):
        status, detail = federation.refused(**changes)
        assert 400 <= status < 500 and said in detail, detail
    option = federation.previewed()
    assert option["applies"] and option["rounds_to_redo"] is not None
    done = federation.forget()
    assert done["chosen"] == method
    (line,) = done["lines"]
    assert line["action"] == "unlearned" and line["audit"]["passed"]
    own = line["audit"]["leavers"][LEAVER]
    for name in ("mia_auc", "likelihood_auc", "forgotten_accuracy"):
        assert {0 <= own[which][name] <= 1 for which in ("figures", "before")} == {True}
    federation.deployment.wait_for_run(run_id)
    models = list(federation.deployment.pages(f"/v1/runs/{run_id}/checkpoints"))
    assert any(model["kind"] == "forgotten" for model in models)
    assert all(model["stored"] == (model["superseded_by"] is None) for model in models)
    with federation.deployment.admin() as admin:
        head = next(model for model in models if model["is_head"])
        assert LEAVER not in admin.get(f"/v1/checkpoints/{head['id']}/lineage").json()["clients"]
        key = admin.get("/v1/erasure/discovery").json()["public_key"]
        verdict = check(admin.get(f"{REQUESTS}/{done['id']}/certificate").content, key.encode())
    assert verdict.valid, verdict.checks
    wait_until(federation.leaver_is_shut_out, 10, "the leaver is shut out")
