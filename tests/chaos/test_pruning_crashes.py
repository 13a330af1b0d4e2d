"""The coordinator dies while FUDP prunes: who rated the channels is stored, and the same models come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployment import Deployment, wait_until

NAMES = [f"site-{letter}" for letter in "abc"]
LEAVER = NAMES[0]
REQUESTS = "/v1/erasure-requests"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path, settings={"LETHE_KERNEL_LEASE_S": "2"}) as deployment:
        deployment.start_coordinator()
        yield deployment


def trained(deployment: Deployment, federation_id: str, key: str) -> str:
    spec = {
        "name": "pruned",
        "seed": 7,
        "model": {"name": "cnn", "params": {"input_shape": [8, 8], "num_classes": 10}},
        "local": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
        "stop": {"rounds": 2},
        "lease_s": 10.0,
    }
    run_id = deployment.create_run(federation_id, spec, key)
    deployment.wait_for_run(run_id)
    return run_id


def forgotten(deployment: Deployment, federation_id: str, run_id: str, *, dies: bool) -> list[tuple[str, int, str]]:
    """The models that were made to forget the leaver, and after."""
    wanted = {"method": "fudp", "guarantee": "approximate", "params": {"forget_class": 3}, "recovery_rounds": 1}
    with deployment.admin() as admin:
        body = {"federation_id": federation_id, "subjects": [LEAVER], **wanted}
        filed = admin.post(REQUESTS, json=body, headers={"Idempotency-Key": federation_id})
        assert filed.status_code == 202, filed.text
    if dies:
        coordinator = deployment.processes["coordinator"]
        wait_until(lambda: not coordinator.is_alive, 60, "the coordinator dies there", deployment.logs)
        deployment.restart("coordinator")

    def completed() -> bool:
        with deployment.admin() as admin:
            return bool(admin.get(f"{REQUESTS}/{filed.json()['id']}").json()["status"] == "completed")

    wait_until(completed, 120, "the request completes", deployment.logs)
    deployment.wait_for_run(run_id)
    models: list[dict[str, Any]] = list(deployment.pages(f"/v1/runs/{run_id}/checkpoints"))
    return sorted((one["kind"], one["round"], one["digest"]) for one in models if one["epoch"] == 1)


def test_a_kill_amid_pruning_ends_with_the_same_digests(deployment: Deployment) -> None:
    federations: dict[str, str] = {}
    tokens: dict[str, str] = {}
    data: dict[str, str] = {}
    for name in ("calm", "stormy"):
        federations[name], issued = deployment.enrol(name, NAMES)
        tokens |= {f"{name}/{client}": token for client, token in issued.items()}
        data |= {f"{name}/{client}": f"builtin:digits#part={n}/3,seed=0" for n, client in enumerate(NAMES)}
    deployment.start_fleet("fleet", tokens, data)
    runs = {name: trained(deployment, federation_id, name) for name, federation_id in federations.items()}
    wanted = forgotten(deployment, federations["calm"], runs["calm"], dies=False)
    assert [(kind, number) for kind, number, _ in wanted] == [("aggregate", 4), ("forgotten", 3)]
    deployment.processes["coordinator"].end()
    deployment.start_coordinator(LETHE_CRASH_AT="kernel.after")
    assert forgotten(deployment, federations["stormy"], runs["stormy"], dies=True) == wanted
