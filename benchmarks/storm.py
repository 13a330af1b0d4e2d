"""Nobody can stop anybody else: two tenants, twenty honest clients, five hostile ones, and a failover of Postgres.

For two minutes on each back end the hostile clients (slow bodies, endless headers, absurd figures, huge updates,
floods) do their worst. The honest ones train run after run, some of them together with the hostile ones, and erasures
are filed meanwhile. Half-way Postgres turns read-only for four seconds. Afterwards every run must have completed, every
erasure must have its certificate, and nobody may have been answered with a 5xx other than 503. One JSON line per back
end with the latency of the honest; exit code 1 when any of it does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.figures import percentile
from benchmarks.storm_clients import HOSTILE, Crowd, Record, honest, update
from services.audit.verification import check
from tests.support.deployment import Deployment, wait_until
from tests.support.servers import PostgresServer, RedisServer

TENANTS: Final = ("clinics", "banks")
HONEST: Final = 10
LEAVERS: Final = 3
REQUESTS: Final = "/v1/erasure-requests"
READ_ONLY_S: Final = 4.0
SETTLE_S: Final = 240.0


@dataclass(frozen=True)
class Size:
    seconds: float = 120.0
    """How long the hostile clients go on."""
    rounds: int = 12
    deadline_s: float = 5.0
    """Of a round: the hostile members do not answer."""


@dataclass
class Tenant:
    """A federation with its clients' tokens, and what was begun in it."""

    name: str
    federation_id: str
    tokens: dict[str, str]
    deployment: Deployment
    size: Size
    init: str = ""
    runs: list[str] = field(default_factory=list)
    requests: dict[str, str] = field(default_factory=dict)
    """Client -> its erasure request."""

    def begin_run(self, **changes: Any) -> None:
        spec = {
            "name": f"run-{len(self.runs)}",
            "model": {"name": "custom"},
            "init": self.init,
            "training": {"algorithm": "fedavg", "quorum": HONEST - 2, "deadline_s": self.size.deadline_s},
            "validation": {"at_clients": True, "every": 4},
            "stop": {"rounds": self.size.rounds},
            "lease_s": 5.0,
            **changes,
        }
        self.runs.append(self.deployment.create_run(self.federation_id, spec, key=f"{self.name}-{len(self.runs)}"))

    def file_erasure(self, admin: httpx.Client, subject: str) -> bool:
        """Whether it was taken; asked for again it is the same request."""
        body = {"federation_id": self.federation_id, "subjects": [subject]}
        answer = admin.post(REQUESTS, json=body, headers={"Idempotency-Key": f"{self.name}-{subject}"})
        if answer.status_code == 202:
            self.requests[subject] = answer.json()["id"]
        return answer.status_code == 202


@contextlib.contextmanager
def deployed(backend: str, directory: Path) -> Iterator[tuple[Deployment, PostgresServer | None]]:
    with contextlib.ExitStack() as stack:
        postgres = redis = None
        if backend == "postgres":
            postgres, redis = PostgresServer(), RedisServer()
            stack.callback(postgres.dispose)
            stack.callback(redis.dispose)
            postgres.start()
            redis.start()
        url, redis_url = postgres.new_database() if postgres else None, redis.url if redis else None
        deployment = stack.enter_context(Deployment(directory, url, redis_url, is_examined=False))
        deployment.start_coordinator()
        yield deployment, postgres


def enrolled(deployment: Deployment, name: str, size: Size) -> Tenant:
    names = [f"honest-{n}" for n in range(HONEST)] + [f"leaver-{n}" for n in range(LEAVERS)]
    federation_id, tokens = deployment.enrol(name, names + [hostile.__name__.replace("_", "-") for hostile in HOSTILE])
    tenant = Tenant(name, federation_id, tokens, deployment, size)
    tenant.init, data = update(0.0)
    with deployment.admin() as admin:
        path = f"/v1/blobs/{tenant.init}?federation_id={federation_id}"
        assert admin.put(path, content=data).is_success
    return tenant


def run_storm(backend: str, directory: Path, size: Size) -> dict[str, Any]:
    with deployed(backend, directory) as (deployment, postgres):
        tenants = [enrolled(deployment, name, size) for name in TENANTS]
        record = Record()
        begun = time.monotonic()
        with Crowd(deployment.url(), record) as people:
            for tenant in tenants:
                for name, token in tenant.tokens.items():
                    if name.startswith(("honest-", "leaver-")):
                        people.add(honest, token)
            with Crowd(deployment.url(), record) as mob:
                for number, hostile in enumerate(HOSTILE):
                    mob.add(hostile, tenants[number % 2].tokens[hostile.__name__.replace("_", "-")])
                num_failovers = _live_through(tenants, size.seconds, postgres)
            _wait_for_the_end(tenants)
        certificates = sum(_has_certificate(one, request) for one in tenants for request in one.requests.values())
        runs = [deployment.run(run_id) for tenant in tenants for run_id in tenant.runs]
        ready = httpx.get(f"{deployment.url()}/readyz", timeout=10).status_code
        findings = deployment.findings()
    return {
        "backend": backend,
        "seconds": round(time.monotonic() - begun, 1),
        "failovers": num_failovers,
        "runs": len(runs),
        "runs_completed": sum(run["status"] == "completed" for run in runs),
        "erasures": sum(len(tenant.requests) for tenant in tenants),
        "certificates": certificates,
        "ready": ready == 200,
        "findings": findings,
        "faults": record.servers_faults[:5],
        "statuses": {who: dict(sorted(found.items())) for who, found in sorted(record.statuses.items())},
        "latency_s": {
            request: {f"p{share * 100:.0f}": round(percentile(found, share), 4) for share in (0.5, 0.99)}
            for request, found in sorted(record.latencies_s.items())
        },
    }


def _live_through(tenants: list[Tenant], seconds: float, postgres: PostgresServer | None) -> int:
    """Runs one after the other, a leaver now and then, and one failover; how many failovers there were."""
    begun, num_failovers, left = time.monotonic(), 0, 0
    for tenant in tenants:
        tenant.begin_run()
        tenant.begin_run(clients=[name for name in tenant.tokens if name.startswith("honest-")])
    while (passed := time.monotonic() - begun) < seconds or (left < LEAVERS and passed < seconds + SETTLE_S):
        if postgres is not None and num_failovers == 0 and passed > seconds / 2:
            fail_over(postgres)
            num_failovers += 1
        with contextlib.suppress(httpx.TransportError, AssertionError), tenants[0].deployment.admin() as admin:
            if left < LEAVERS and passed > (left + 1) * seconds / (LEAVERS + 2):
                left += all(tenant.file_erasure(admin, f"leaver-{left}") for tenant in tenants)
            for tenant in tenants:
                if tenant.deployment.run(tenant.runs[-1])["status"] == "completed":
                    tenant.begin_run()
        time.sleep(0.5)
    return num_failovers


def fail_over(postgres: PostgresServer) -> None:
    """The server turns read-only and drops everybody, as when a standby takes over; later it is the primary."""
    for is_read_only in (True, False):
        postgres.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if is_read_only else 'off'}")
        postgres.execute("SELECT pg_reload_conf()")
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lethe'")
        time.sleep(READ_ONLY_S if is_read_only else 0.0)


def _wait_for_the_end(tenants: list[Tenant]) -> None:
    """Failed runs and requests count as ended here; the row says what they were."""

    def ended() -> bool:
        with contextlib.suppress(httpx.TransportError, AssertionError):
            for tenant in tenants:
                states = [tenant.deployment.run(run_id)["status"] for run_id in tenant.runs]
                requests = [_request(tenant, request) for request in tenant.requests.values()]
                if any("tried again by itself" in (request["reason"] or "") for request in requests):
                    return False
                states += [request["status"] for request in requests]
                if any(state not in ("completed", "failed", "cancelled", "requires_action") for state in states):
                    return False
            return True
        return False

    with contextlib.suppress(AssertionError):
        wait_until(ended, SETTLE_S, "runs and erasures end")


def _request(tenant: Tenant, request_id: str) -> dict[str, Any]:
    with tenant.deployment.admin() as admin:
        found: dict[str, Any] = admin.get(f"{REQUESTS}/{request_id}").raise_for_status().json()
        return found


def _has_certificate(tenant: Tenant, request_id: str) -> bool:
    with tenant.deployment.admin() as admin:
        key = admin.get("/v1/erasure/discovery").json()["public_key"]
        answer = admin.get(f"{REQUESTS}/{request_id}/certificate")
        return answer.status_code == 200 and check(answer.content, key.encode()).valid


def is_sound(row: dict[str, Any]) -> bool:
    return bool(
        row["ready"]
        and not row["findings"]
        and not row["faults"]
        and row["runs_completed"] == row["runs"] > 0
        and row["certificates"] == row["erasures"] == LEAVERS * len(TENANTS)
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the hostile clients go on")
    parser.add_argument("--backend", default="sqlite,postgres")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the output is JSON lines")
    options = parser.parse_args(argv)
    sound = True
    for backend in options.backend.split(","):
        with tempfile.TemporaryDirectory(prefix="lethe-storm-", ignore_cleanup_errors=True) as directory:
            row = run_storm(backend, Path(directory) / "site", Size(options.seconds))
        sound &= is_sound(row)
        print(json.dumps(row | {"sound": is_sound(row)}), flush=True)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
