"""A real coordinator on the loopback for the length of a measurement: `lethe serve` in its own process, with a
federation and its clients' credentials, in a directory that vanishes."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.processes import Child, ProcessDied, family, free_port, running
from lethe import Client, Refused, Unreachable

Backend = Literal["sqlite", "postgres"]
Blobs = Literal["file", "postgres"]
ADMIN_TOKEN: Final = "benchmark-" + "0123456789abcdef" * 3
READY_WITHIN_S: Final = 60.0
ENDED: Final = {"completed", "failed", "cancelled", "paused"}


@dataclass(frozen=True)
class Served:
    port: int
    server: Child
    operator: Client
    federation_id: str
    home: Path
    database_pids: tuple[int, ...]

    def enrol(self, num_clients: int) -> list[str]:
        """The tokens of new clients `client-0000`, …"""
        enrol = self.operator.clients.enrol
        return [enrol(name, federation=self.federation_id).token for name in client_names(num_clients)]

    def start_run(self, spec: dict[str, Any]) -> str:
        return str(self.operator.runs.create(spec, federation=self.federation_id).id)

    @contextmanager
    def fleet(self, name: str, tokens: Sequence[str], data: Sequence[str]) -> Iterator[Child]:
        """One worker process that serves these clients, each with its own data source."""
        members = [{"token": token, "data": source} for token, source in zip(tokens, data, strict=True)]
        path = self.home / f"{name}.yaml"  # JSON is YAML
        path.write_text(json.dumps({"coordinator": f"http://127.0.0.1:{self.port}", "clients": members}))
        arguments = ["lethe.cli", "worker", "--log-json", "--fleet", str(path), "--cache-dir", str(self.home / "cache")]
        with running(name, arguments, self.home / f"{name}.log") as child:
            yield child

    def wait_for_end(self, run_id: str, timeout_s: float, every_s: float = 0.02) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            run = dict(self.operator.request("GET", f"/v1/runs/{run_id}"))
            if run["status"] == "completed":
                return run
            if run["status"] in ENDED or time.monotonic() > deadline:
                raise ProcessDied(f"run {run['status']} in round {run['round']}: {run['reason']}\n{self.server.tail()}")
            time.sleep(every_s)

    def list(self, path: str) -> list[dict[str, Any]]:
        return list(self.operator.pages(path))


def client_names(num_clients: int) -> list[str]:
    return [f"client-{number:04}" for number in range(num_clients)]


@contextmanager
def serving(backend: Backend = "sqlite", blobs: Blobs = "file", state: Path | None = None) -> Iterator[Served]:
    """`state`: the coordinator's directory (LETHE_HOME) to go on from; a new federation when absent."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lethe-bench-", ignore_cleanup_errors=True)))
        port = free_port()
        environment = {
            "LETHE_HOME": str(state or home / "lethe"),
            "LETHE_PORT": str(port),
            "LETHE_HOST": "127.0.0.1",
            "LETHE_BLOBS": blobs,
            "LETHE_ADMIN_TOKEN": ADMIN_TOKEN,
        }
        database_pids: tuple[int, ...] = ()
        if backend == "postgres":
            environment |= _start_database(stack)
            database_pids = tuple(pid for pid in family(os.getpid()) if _is_database(pid))
            with running(
                "lethe db upgrade", ["lethe.cli", "db", "upgrade"], home / "upgrade.log", environment
            ) as upgrade:
                upgrade.wait(READY_WITHIN_S)
        server = stack.enter_context(running("lethe serve", ["lethe.cli", "serve"], home / "serve.log", environment))
        operator = stack.enter_context(Client(f"http://127.0.0.1:{port}", ADMIN_TOKEN))
        _wait_until_ready(server, operator)
        known = list(operator.federations.list())
        federation = known[0] if known else operator.federations.create("benchmark")
        yield Served(port, server, operator, str(federation.id), home, database_pids)


def _start_database(stack: ExitStack) -> dict[str, str]:
    from tests.support.servers import PostgresServer, RedisServer

    postgres, redis = PostgresServer(), RedisServer()
    stack.callback(postgres.dispose)
    stack.callback(redis.dispose)
    postgres.start()
    redis.start()
    database_url = postgres.new_database()
    stack.callback(postgres.drop_database, database_url)
    return {"LETHE_DATABASE_URL": database_url, "LETHE_REDIS_URL": redis.url}


def _is_database(pid: int) -> bool:
    with suppress(OSError):  # it may have ended
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("postgres", "valkey-server", "redis-server")
    return False


def _wait_until_ready(server: Child, operator: Client) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        server.expect_alive()
        try:
            operator.request("GET", "/readyz")
            return
        except (Unreachable, Refused) as error:
            if time.monotonic() > deadline:
                raise ProcessDied(f"lethe serve is not ready: {error}\n{server.tail()}") from error
        time.sleep(0.05)
