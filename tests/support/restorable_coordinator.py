"""Coordinators that can be stopped, killed and restored from backups while others talk to them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from coordinator.api.app import create_app
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from tests.support.backups import Backup, Installation
from tests.support.deployment import Deployment
from tests.support.health import faults_found
from tests.support.schemas import make_ready

ADMIN_TOKEN = "the-admin-token-of-these-tests"
Answer = httpx.Response | None
OF_COMPUTE = "kernel."
"""How the names of crash points begin that only a process passes which runs kernels."""


@dataclass
class RestorableCoordinator:
    """In this process, behind its real app."""

    place: Installation
    backups: list[Backup] = field(default_factory=list)
    num_restores: int = 0
    num_deaths: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    """Beside those that all have."""
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _http: httpx.AsyncClient | None = None

    @property
    def given(self) -> Settings:
        settings: dict[str, Any] = {"admin_token": SecretStr(ADMIN_TOKEN), "blob_reserve_bytes": 0, **self.settings}
        return Settings(home=self.place.home, database_url=self.place.url, **self.place.settings, **settings)

    async def open(self, crash_at: str | None = None) -> None:
        given = self.given
        self.place.home.mkdir(parents=True, exist_ok=True)
        await make_ready(given.url)
        app = create_app(Coordinator(given))
        await self._stack.enter_async_context(app.router.lifespan_context(app))
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://coordinator")
        self._http = await self._stack.enter_async_context(client)

    async def close(self) -> None:
        await self._stack.aclose()

    async def call(self, token: str, method: str, path: str, **options: Any) -> Answer:
        """None: nobody answered."""
        assert self._http is not None
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        return await self._http.request(method, path, headers=headers, **options)

    async def findings(self) -> list[str]:
        """What the doctor finds wrong."""
        return await faults_found(self.given)

    def back_up(self) -> None:
        directory = self.place.directory / "backups" / str(len(self.backups) + self.num_restores * 100)
        self.backups.append(self.place.back_up(directory))

    async def restore(self, backup: Backup) -> None:
        await self.close()
        self.place = backup.put_back()
        self.num_restores += 1
        await self.open()


@dataclass
class RestorableProcess(RestorableCoordinator):
    """In a process of its own, which dies at the place that it was armed for."""

    is_compute_apart: bool = False
    """Kernels run in a second process, which dies at their crash points."""
    died_at: list[str] = field(default_factory=list)
    _armed_at: str = ""
    _deployment: Deployment | None = None

    async def open(self, crash_at: str | None = None) -> None:
        place = self.place
        if self._deployment is None or self._deployment.database_url != place.url:
            settings = {
                "LETHE_EVIDENCE_DIR": str(place.evidence),
                "LETHE_ADMIN_TOKEN": ADMIN_TOKEN,
                "LETHE_KERNEL_LEASE_S": "1",
            }
            self._deployment = Deployment(place.directory, place.url, place.redis_url, place.blobs, settings)
            self._deployment.__enter__()
        self._armed_at = crash_at or ""
        armed = {} if crash_at is None else {"LETHE_CRASH_AT": crash_at}
        is_for_compute = self.is_compute_apart and self._armed_at.startswith(OF_COMPUTE)
        if self.is_compute_apart:
            self._deployment.start_compute(**armed if is_for_compute else {})
        try:
            compute = "none" if self.is_compute_apart else "threads"
            self._deployment.start_coordinator(compute=compute, **{} if is_for_compute else armed)
        except AssertionError:  # it died before it was ready
            if crash_at is None:
                raise
            await self._reopen()
            return
        self._http = httpx.AsyncClient(base_url=self._deployment.url(), timeout=20)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None
        if self._deployment is not None:
            for process in self._deployment.processes.values():
                process.end()

    async def arm(self, crash_at: str) -> None:
        """Kill it now, and let its next life end there."""
        await self.close()
        self.num_deaths += 1
        await self.open(crash_at)

    async def call(self, token: str, method: str, path: str, **options: Any) -> Answer:
        if not self._is_alive("compute"):
            await self._reopen()
        try:
            return await super().call(token, method, path, **options)
        except httpx.TransportError:
            if not self._is_alive("coordinator"):
                await self._reopen()
            return None

    def _is_alive(self, name: str) -> bool:
        processes = {} if self._deployment is None else self._deployment.processes
        return name not in processes or processes[name].is_alive

    async def _reopen(self) -> None:
        self.num_deaths += 1
        self.died_at.append(self._armed_at)
        await self.close()
        await self.open()


def crash_points(root: Path) -> list[str]:
    """All that the coordinator has."""
    words = [line.partition('crashpoint("')[2] for path in root.rglob("*.py") for line in path.read_text().splitlines()]
    return sorted({word.partition('"')[0] for word in words if word})
