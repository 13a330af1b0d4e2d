"""One deployment and one worker process per module: starting a worker (importing torch) is what costs time here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployment import Deployment
from tests.support.servers import PostgresServer, RedisServer

CLIENTS = ["site-a", "site-b", "site-c"]


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "name": "crash",
        "seed": 3,
        "model": {"name": "mlp", "params": {"input_shape": [1, 8, 8], "num_classes": 10}},
        "local": {"epochs": 1, "batch_size": 64, "learning_rate": 0.1},
        "stop": {"rounds": 4},
        "lease_s": 2.0,
        **changes,
    }


@dataclass
class Site:
    """A deployment with a fleet that keeps running while its coordinator is killed and restarted."""

    deployment: Deployment
    federation_id: str
    tokens: dict[str, str]
    num_runs: int = 0
    init: str | None = None
    """An initial model for all runs but the first: a restarted coordinator then never has to import torch."""

    def create_run(self, **changes: Any) -> str:
        self.num_runs += 1
        if self.init is not None:
            changes["init"] = self.init
        return self.deployment.create_run(self.federation_id, spec(**changes), key=f"run-{self.num_runs}")


@pytest.fixture(scope="module")
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Site]]:
    """Sites by back end (`sqlite` or `postgres`), made on first use and kept for the module."""
    made: dict[str, Site] = {}
    with contextlib.ExitStack() as stack:

        def site(backend: str) -> Site:
            if backend not in made:
                made[backend] = _start(stack, backend, request, tmp_path_factory.mktemp(f"site-{backend}"))
            return made[backend]

        yield site


def _start(stack: contextlib.ExitStack, backend: str, request: pytest.FixtureRequest, directory: Path) -> Site:
    database_url = redis_url = None
    if backend == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        redis: RedisServer = request.getfixturevalue("redis_server")
        database_url, redis_url = postgres.new_database(), redis.url
    settings = {"LETHE_KERNEL_LEASE_S": "2"}
    deployment = stack.enter_context(Deployment(directory, database_url, redis_url, settings=settings))
    deployment.start_coordinator()
    federation_id, tokens = deployment.enrol("sites", CLIENTS)
    data = {name: f"builtin:digits#part={i}/{len(CLIENTS)},seed=0" for i, name in enumerate(CLIENTS)}
    deployment.start_fleet("fleet", tokens, data)
    site = Site(deployment, federation_id, tokens)
    first = site.create_run(stop={"rounds": 1})
    deployment.wait_for_run(first)
    site.init = deployment.digests(first)[0]
    return site
