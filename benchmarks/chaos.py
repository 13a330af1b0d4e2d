"""Kill everything at random instants: nothing is lost, nothing is counted twice, and the bytes are the same.

A seeded run on real processes (coordinator, compute, two workers with three clients each) while a monkey sends SIGKILL
to them, stops Postgres with `-m immediate` and flushes Redis. For FedAvg the final digest must equal that of the same
run without faults; for FedBuff, whose buffers depend on the finishing order, every checkpoint is recomputed from its
recorded updates and must come out with the same digest. In the mode `erasure`, clients are erased during the kills:
every request must end with one certificate that verifies, and no model that is served may have them in its
ancestry. One JSON line per back end and mode; exit code 1 when any of it does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from services.audit.verification import check
from services.core import digests
from services.tensors.aggregate import weighted_step
from services.tensors.streams import FileWriter, StoredFile
from tests.support.deployment import Deployment, wait_until
from tests.support.servers import PostgresServer, RedisServer

NUM_CLIENTS = 6
PROCESSES = ("coordinator", "compute", "fleet-a", "fleet-b")
LEAVERS = ("site-0", "site-1", "site-2")
REQUESTS = "/v1/erasure-requests"


def spec(mode: str, rounds: int) -> dict[str, Any]:
    training: dict[str, Any] = {"algorithm": "fedavg"}
    if mode == "fedbuff":
        training = {"algorithm": "fedbuff", "buffer_size": 3, "concurrency": 5}
    return {
        "name": f"chaos-{mode}",
        "seed": 7,
        "model": {"name": "mlp", "params": {"input_shape": [1, 8, 8], "num_classes": 10}},
        "training": training,
        "local": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
        "stop": {"rounds": rounds},
        "lease_s": 3.0,
    }


@dataclass
class Monkey:
    """Breaks one thing at a time at random instants, mends it, and waits for the next published round."""

    deployment: Deployment
    postgres: PostgresServer | None
    redis: RedisServer | None
    run_id: str
    draw: random.Random
    num_kills: int = 0
    num_database_stops: int = 0
    num_flushes: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    leavers: list[str] = field(default_factory=list)
    """Clients still to be erased, one after every third strike."""

    def torment(self, kills: int) -> None:
        while self.num_kills < kills and self._round() is not None:
            time.sleep(self.draw.uniform(0.0, 0.2))
            if self.leavers and len(self.recoveries_s) % 3 == 2:
                file_erasure(self.deployment, self.leavers.pop(0))
            if (before := self._round()) is not None:
                struck_at = time.monotonic()
                self._strike()
                self._wait_for_a_round_after(before)
                self.recoveries_s.append(time.monotonic() - struck_at)

    def _strike(self) -> None:
        """One or two processes; every fifth time the database before them, every third time Redis."""
        number = len(self.recoveries_s) + 1
        if self.postgres is not None and number % 5 == 2:
            self.postgres.stop("immediate")
            time.sleep(self.draw.uniform(0.0, 2.0))
            self.postgres.start()
            self.num_database_stops += 1
        if self.redis is not None and number % 3 == 1:
            self.redis.flush()
            self.num_flushes += 1
        victims = self.draw.sample(PROCESSES, k=self.draw.choice((1, 2)))
        for name in victims:
            self.deployment.processes[name].end(signal.SIGKILL)
            self.num_kills += 1
        time.sleep(self.draw.uniform(0.0, 0.3))
        for name in victims:
            self.deployment.restart(name)

    def _round(self) -> int | None:
        """The newest published round; None when the run has ended."""
        while True:
            with contextlib.suppress(httpx.HTTPError, AssertionError):
                found = self.deployment.run(self.run_id)
                return int(found["round"]) if found["status"] in ("running", "paused") else None
            time.sleep(0.05)

    def _wait_for_a_round_after(self, before: int) -> None:
        def moved_on() -> bool:
            now = self._round()
            return now is None or now > before

        wait_until(moved_on, 120, "the run goes on", self.deployment.logs)


def run_cell(directory: Path, backend: str, mode: str, *, rounds: int, kills: int, seed: int) -> dict[str, Any]:
    """One run; with `kills` = 0 it is the reference."""
    with contextlib.ExitStack() as stack:
        postgres = redis = None
        if backend == "postgres":
            postgres, redis = PostgresServer(), RedisServer()
            stack.callback(postgres.dispose)
            stack.callback(redis.dispose)
            postgres.start()
            redis.start()
        deployment = stack.enter_context(
            Deployment(
                directory,
                postgres.new_database() if postgres else None,
                redis.url if redis else None,
                settings={"LETHE_KERNEL_LEASE_S": "3"},
                is_examined=False,
            )
        )
        deployment.start_coordinator(compute="none")
        deployment.start_compute()
        names = [f"site-{i}" for i in range(NUM_CLIENTS)]
        federation_id, tokens = deployment.enrol("chaos", names)
        data = {n: f"builtin:digits#part={i}/{NUM_CLIENTS},how=dirichlet:0.5,seed=0" for i, n in enumerate(names)}
        for fleet, members in (("fleet-a", names[::2]), ("fleet-b", names[1::2])):
            deployment.start_fleet(fleet, {n: tokens[n] for n in members}, data)
        run_id = deployment.create_run(federation_id, spec(mode, rounds))
        monkey = Monkey(deployment, postgres, redis, run_id, random.Random(seed))
        if mode == "erasure":
            monkey.leavers = list(LEAVERS)
        if kills:
            monkey.torment(kills)
        for name in monkey.leavers:  # the kills were over before their turn
            file_erasure(deployment, name)
        deployment.wait_for_run(run_id, timeout_s=300)
        judge = audit_erasures if mode == "erasure" else audit
        return judge(deployment, run_id, rounds) | {
            "findings": deployment.findings(),
            "kills": monkey.num_kills,
            "database_stops": monkey.num_database_stops,
            "redis_flushes": monkey.num_flushes,
            "recoveries_s": monkey.recoveries_s,
        }


def audit(deployment: Deployment, run_id: str, rounds: int) -> dict[str, Any]:
    """Count what is missing or there twice, and recompute every checkpoint from its recorded updates."""
    checkpoints = sorted(deployment.pages(f"/v1/runs/{run_id}/checkpoints"), key=lambda c: c["round"])
    used: Counter[str] = Counter()
    clients_twice = replayed = 0
    with deployment.admin() as admin, tempfile.TemporaryDirectory() as scratch:
        federation_id = admin.get(f"/v1/runs/{run_id}").json()["federation_id"]
        for checkpoint in checkpoints:
            lineage = admin.get(f"/v1/checkpoints/{checkpoint['id']}/lineage").json()
            used.update(c["update_id"] for c in lineage["contributions"])
            names = [c["client_name"] for c in lineage["contributions"]]
            clients_twice += len(names) - len(set(names))
            if lineage["base"] is not None:
                replayed += replay(admin, federation_id, lineage, Path(scratch)) == checkpoint["digest"]
    tasks = {task["id"]: task for task in deployment.pages(f"/v1/runs/{run_id}/tasks")}
    acknowledged = set(submitted_tasks(deployment))
    numbers = {c["round"] for c in checkpoints}
    lost_rounds = set(range(rounds + 1)) - numbers
    counted_twice = sum(n - 1 for n in used.values()) + len(checkpoints) - len(numbers)
    return {
        "digest": checkpoints[-1]["digest"],
        "lost": len(lost_rounds) + sum(tasks[t]["status"] != "done" for t in acknowledged if t in tasks),
        "duplicated": clients_twice + counted_twice,
        "acknowledged_by_workers": len(acknowledged),
        "replayed": replayed,
        "to_replay": len(checkpoints) - 1,
    }


def file_erasure(deployment: Deployment, name: str) -> None:
    """Asked for again, with the same key, until the coordinator has answered."""

    def accepted() -> bool:
        with contextlib.suppress(httpx.TransportError), deployment.admin() as admin:
            federation_id = admin.get("/v1/federations").json()["items"][0]["id"]
            body = {"federation_id": federation_id, "subjects": [name]}
            return admin.post(REQUESTS, json=body, headers={"Idempotency-Key": name}).status_code == 202
        return False

    wait_until(accepted, 60, "the request is taken", deployment.logs)


def audit_erasures(deployment: Deployment, run_id: str, rounds: int) -> dict[str, Any]:
    """Requests that did not end with one valid certificate count as lost, erased clients in a served model as back."""

    def settled() -> bool:
        return all(one["status"] in ("completed", "requires_action", "failed") for one in deployment.pages(REQUESTS))

    wait_until(settled, 300, "every request is settled", deployment.logs)
    deployment.wait_for_run(run_id, timeout_s=300)
    requests = list(deployment.pages(REQUESTS))
    served = [c for c in deployment.pages(f"/v1/runs/{run_id}/checkpoints") if c["superseded_by"] is None]
    came_back = verified = replayed = 0
    with deployment.admin() as admin, tempfile.TemporaryDirectory() as scratch:
        key = admin.get("/v1/erasure/discovery").json()["public_key"].encode()
        for request in requests:
            verified += check(admin.get(f"{REQUESTS}/{request['id']}/certificate").content, key).valid
        federation_id = admin.get(f"/v1/runs/{run_id}").json()["federation_id"]
        for checkpoint in served:
            lineage = admin.get(f"/v1/checkpoints/{checkpoint['id']}/lineage").json()
            came_back += len({*lineage["clients"]} & {*LEAVERS})
            if lineage["base"] is not None:
                replayed += replay(admin, federation_id, lineage, Path(scratch)) == checkpoint["digest"]
    return {
        "digest": max(served, key=lambda c: c["round"])["digest"],
        "lost": len(requests) - verified,
        "duplicated": came_back + len(requests) - len({request["id"] for request in requests}),
        "acknowledged_by_workers": len(submitted_tasks(deployment)),
        "replayed": replayed,
        "to_replay": len(served) - 1,
        "certificates": f"{verified}/{len(requests)}",
    }


def submitted_tasks(deployment: Deployment) -> list[str]:
    """The tasks whose submission a worker saw acknowledged, from the workers' own logs."""
    found = []
    for name in ("fleet-a", "fleet-b"):
        text = re.sub(r"\x1b\[[0-9;]*m", "", deployment.processes[name].log.read_text(errors="replace"))
        found += re.findall(r"task\.submitted.*?\btask=([0-9a-f-]{36})", text)
    return found


def replay(admin: httpx.Client, federation_id: str, lineage: dict[str, Any], scratch: Path) -> str:
    """The digest of the checkpoint as its base and recorded updates give it."""

    def fetch(digest: str) -> Path:
        path = scratch / digest.removeprefix("sha256:")
        if not path.exists():
            response = admin.get(f"/v1/blobs/{digest}", params={"federation_id": federation_id})
            assert response.status_code == 200, response.text
            assert digests.of_bytes(response.content) == digest
            path.write_bytes(response.content)
        return path

    base, out = lineage["base"]["digest"], scratch / "out.safetensors"
    updates = [{"digest": c["digest"], "weight": c["weight"]} for c in lineage["contributions"]]
    files = {digest: StoredFile(fetch(digest)) for digest in (base, *(u["digest"] for u in updates))}
    with FileWriter(out) as writer:
        weighted_step({"base": base, "updates": updates, "scale": lineage["scale"]}, files, writer)
    return digests.of_bytes(out.read_bytes())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="sqlite,postgres")
    parser.add_argument("--mode", default="fedavg,fedbuff,erasure")
    options = parser.parse_args(argv)
    sound = True
    for backend in options.backend.split(","):
        for mode in options.mode.split(","):
            row = torment_and_compare(backend, mode, options)
            sound &= row["sound"]
            print(json.dumps(row), flush=True)
    return 0 if sound else 1


def torment_and_compare(backend: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lethe-chaos-") as directory:
        root, size = Path(directory), {"rounds": options.rounds, "seed": options.seed}
        reference = run_cell(root / "calm", backend, mode, kills=0, **size) if mode == "fedavg" else None
        found = run_cell(root / "storm", backend, mode, kills=options.kills, **size)
    recoveries = sorted(found["recoveries_s"])
    row = {
        "backend": backend,
        "mode": mode,
        "kills": found["kills"],
        "database_stops": found["database_stops"],
        "redis_flushes": found["redis_flushes"],
        "lost": found["lost"],
        "duplicated": found["duplicated"],
        "acknowledged_by_workers": found["acknowledged_by_workers"],
        "digest": found["digest"],
        "reference_digest": reference["digest"] if reference else None,
        "replayed": f"{found['replayed']}/{found['to_replay']}",
        "certificates": found.get("certificates"),
        "findings": found["findings"],
        "recovery_p50_s": round(statistics.median(recoveries), 2) if recoveries else None,
        "recovery_p99_s": round(recoveries[int(0.99 * (len(recoveries) - 1))], 2) if recoveries else None,
    }
    row["sound"] = (
        found["lost"] == found["duplicated"] == 0
        and not found["findings"]
        and found["kills"] >= options.kills
        and found["replayed"] == found["to_replay"]
        and (reference is None or reference["digest"] == found["digest"])
        and (mode != "erasure" or found["certificates"] == f"{len(LEAVERS)}/{len(LEAVERS)}")
    )
    return row


if __name__ == "__main__":
    sys.exit(main())
