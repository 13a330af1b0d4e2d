"""A real deployment on loopback: coordinator, compute and worker processes that tests may kill at any instant."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from coordinator.runtime.settings import Settings
from tests.support.forked import Forked, run_lethe
from tests.support.health import faults_found
from tests.support.servers import free_port

START_TIMEOUT_S = 60.0


@dataclass
class Process:
    """A command that can be killed and started again, with one log for all its lives."""

    name: str
    arguments: list[str]
    environment: dict[str, str]
    log: Path
    popen: Forked | None = None

    def start(self, **extra: str) -> Process:
        with self.log.open("ab") as output:
            self.popen = Forked(self.arguments, env={**self.environment, **extra}, stdout=output)
        return self

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    @property
    def is_alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.is_alive:
            os.killpg(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL, timeout_s: float = 30.0) -> int:
        """Signal the process and wait for its end; returns its exit code."""
        assert self.popen is not None
        self.send(number)
        try:
            code = self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            code = self.popen.wait(10)
        return code

    def tail(self, num_lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])


@dataclass
class Deployment:
    """`with Deployment(directory) as deployment:` — everything it started is gone afterwards, and unless it was used to
    plant faults, or the test has failed already, `lethe doctor` finds nothing wrong with what it leaves."""

    directory: Path
    database_url: str | None = None
    redis_url: str | None = None
    blobs: str = "file"
    settings: dict[str, str] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    is_examined: bool = True
    """Whether the doctor is called at the end."""

    def __enter__(self) -> Deployment:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.database_url is not None:
            self.run_command("db", "upgrade")
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        try:
            if self.is_examined and failure is None and self.processes:
                findings = self.findings()
                assert not findings, "\n".join(findings)
        finally:
            for process in self.processes.values():
                if process.is_alive:
                    process.send(signal.SIGCONT)
                    process.end()

    @property
    def environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
        environment |= {
            "LETHE_HOME": str(self.directory / "home"),
            "LETHE_BLOBS": self.blobs,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if self.database_url is not None:
            environment["LETHE_DATABASE_URL"] = self.database_url
        if self.redis_url is not None:
            environment["LETHE_REDIS_URL"] = self.redis_url
        return environment | self.settings

    def run_command(self, *arguments: str) -> str:
        done = run_lethe(*arguments, env=self.environment)
        assert done.returncode == 0, f"lethe {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def findings(self) -> list[str]:
        """What `lethe doctor --deep` finds wrong, beside what runs."""
        given = {"home": self.directory / "home", "database_url": self.database_url, "blobs": self.blobs}
        if evidence := self.settings.get("LETHE_EVIDENCE_DIR"):
            given["evidence_dir"] = Path(evidence)
        settings = Settings.model_validate(given)
        with ThreadPoolExecutor(1) as apart:  # browsers drive a loop in this thread
            return apart.submit(lambda: asyncio.run(faults_found(settings))).result()

    # --- processes ----------------------------------------------------------------------------------------------------

    def process(self, name: str, *arguments: str) -> Process:
        known = self.processes.get(name)
        if known is None:
            log = self.directory / f"{name}.log"
            known = self.processes[name] = Process(name, list(arguments), self.environment, log)
        return known

    def start_coordinator(self, name: str = "coordinator", *, compute: str = "threads", **extra: str) -> Process:
        port = self.ports.setdefault(name, free_port())
        process = self.process(name, "serve", "--port", str(port), "--compute", compute)
        process.start(**extra)
        self.wait_ready(name)
        return process

    def start_compute(self, name: str = "compute", **extra: str) -> Process:
        return self.process(name, "compute").start(**extra)

    def start_fleet(
        self, name: str, tokens: dict[str, str], data: dict[str, str], *, coordinator: str = "coordinator"
    ) -> Process:
        """One worker process that serves the clients in `tokens` (name -> token), each with its own data source."""
        fleet = {
            "coordinator": self.url(coordinator),
            "clients": [{"token": token, "data": data[client]} for client, token in tokens.items()],
        }
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(fleet))
        cache = self.directory / f"{name}-cache"
        return self.process(name, "worker", "--fleet", str(path), "--cache-dir", str(cache)).start()

    def restart(self, name: str) -> None:
        """Start a dead process again, and wait for a coordinator until it answers."""
        self.processes[name].start()
        if name in self.ports:
            self.wait_ready(name)

    # --- talking to it ------------------------------------------------------------------------------------------------

    def url(self, coordinator: str = "coordinator") -> str:
        return f"http://127.0.0.1:{self.ports[coordinator]}"

    def wait_ready(self, name: str) -> None:
        def ready() -> bool:
            process = self.processes[name]
            assert process.is_alive, f"{name} ended:\n{process.tail()}"
            with contextlib.suppress(httpx.HTTPError):
                return http.get(f"{self.url(name)}/readyz").status_code == 200
            return False

        with _without_tls(timeout=2) as http:
            wait_until(ready, START_TIMEOUT_S, f"{name} is ready")

    @contextlib.contextmanager
    def admin(self, coordinator: str = "coordinator") -> Iterator[httpx.Client]:
        token = (self.directory / "home" / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with _without_tls(base_url=self.url(coordinator), headers=headers, timeout=30) as client:
            yield client

    def enrol(self, federation: str, names: list[str]) -> tuple[str, dict[str, str]]:
        """A new federation with these clients: (its id, tokens by client name)."""
        with self.admin() as admin:
            federation_id = _json(admin.post("/v1/federations", json={"name": federation}))["id"]
            tokens = {
                name: _json(admin.post(f"/v1/federations/{federation_id}/clients", json={"name": name}))["token"]
                for name in names
            }
        return federation_id, tokens

    def create_run(self, federation_id: str, spec: dict[str, Any], key: str = "run") -> str:
        with self.admin() as admin:
            body = {"federation_id": federation_id, "spec": spec}
            return str(_json(admin.post("/v1/runs", json=body, headers={"Idempotency-Key": key}))["id"])

    def run(self, run_id: str, coordinator: str = "coordinator") -> dict[str, Any]:
        with self.admin(coordinator) as admin:
            return _json(admin.get(f"/v1/runs/{run_id}"))

    def wait_for_run(self, run_id: str, timeout_s: float = 120.0, status: str = "completed") -> dict[str, Any]:
        def ended() -> bool:
            with contextlib.suppress(httpx.TransportError):
                found = self.run(run_id)
                assert found["status"] in ("running", "paused", status), found["reason"]
                return bool(found["status"] == status)
            return False

        wait_until(ended, timeout_s, f"the run is {status}", self.logs)
        return self.run(run_id)

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        cursor = ""
        with self.admin() as admin:
            while True:
                page = _json(admin.get(path, params={"limit": 200, **({"cursor": cursor} if cursor else {})}))
                yield from page["items"]
                cursor = page["next_cursor"] or ""
                if not cursor:
                    return

    def digests(self, run_id: str) -> dict[int, str]:
        """The published digest of each round."""
        return {c["round"]: c["digest"] for c in self.pages(f"/v1/runs/{run_id}/checkpoints")}

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{process.tail()}" for name, process in self.processes.items())


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, explain: Callable[[], str] = lambda: ""
) -> None:
    """Asking takes at most a third of the time: it would hold up what is waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        asked_at = time.monotonic()
        if condition():
            return
        assert asked_at < deadline, f"not within {timeout_s:.0f} s: {what}\n{explain()}"
        time.sleep(min(1.0, max(0.05, 2 * (time.monotonic() - asked_at))))


def _without_tls(**options: Any) -> httpx.Client:
    """To load the certificates that nobody asks for here would take longer than many requests."""
    return httpx.Client(verify=False, **options)


def _json(response: httpx.Response) -> dict[str, Any]:
    assert response.is_success, f"{response.request.method} {response.request.url}: {response.text}"
    found: dict[str, Any] = response.json()
    return found
