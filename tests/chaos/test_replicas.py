"""Two coordinators and two compute processes on one Postgres decide nothing twice, even when one falls asleep."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from benchmarks.chaos import audit
from tests.chaos.conftest import CLIENTS, spec
from tests.support.deployment import Deployment, wait_until
from tests.support.servers import PostgresServer, RedisServer

ROUNDS = 8


def test_replicas_stopped_beyond_their_lease_and_resumed_change_nothing(
    postgres_server: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = {"LETHE_KERNEL_LEASE_S": "1"}
    with Deployment(tmp_path, postgres_server.new_database(), redis_server.url, settings=settings) as deployment:
        deployment.start_coordinator("coordinator", compute="none")
        deployment.start_coordinator("replica", compute="none")
        deployment.start_compute("compute-1")
        deployment.start_compute("compute-2")
        federation_id, tokens = deployment.enrol("replicas", CLIENTS)
        data = {name: f"builtin:digits#part={i}/{len(CLIENTS)},seed=0" for i, name in enumerate(CLIENTS)}
        first, *rest = CLIENTS
        deployment.start_fleet("fleet-a", {first: tokens[first]}, data, coordinator="replica")
        deployment.start_fleet("fleet-b", {name: tokens[name] for name in rest}, data)
        calm = deployment.create_run(federation_id, spec(stop={"rounds": ROUNDS}), "calm")
        deployment.wait_for_run(calm)

        stormy = deployment.create_run(federation_id, spec(stop={"rounds": ROUNDS}), "stormy")
        for number, sleepers in enumerate((("replica", "compute-1"), ("compute-2",), ("replica",)), start=1):
            _wait_for_round(deployment, stormy, number)
            for name in sleepers:
                deployment.processes[name].send(signal.SIGSTOP)
            time.sleep(2.5)  # beyond the leases of kernels (1 s) and tasks (2 s)
            for name in sleepers:
                deployment.processes[name].send(signal.SIGCONT)
        deployment.wait_for_run(stormy)

        found = audit(deployment, stormy, ROUNDS)
        assert deployment.digests(stormy) == deployment.digests(calm)
        assert (found["lost"], found["duplicated"], found["replayed"]) == (0, 0, ROUNDS)


def _wait_for_round(deployment: Deployment, run_id: str, number: int) -> None:
    wait_until(lambda: deployment.run(run_id)["round"] >= number, 60, "the run goes on", deployment.logs)
