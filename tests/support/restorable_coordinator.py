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
from tests.support.schemas import make_ready

ADMIN_TOKEN = "the-admin-token-of-these-tests"
Answer = httpx.Response | None


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

    async def open(self, crash_at: str | None = None) -> None:
        settings: dict[str, Any] = {"admin_token": SecretStr(ADMIN_TOKEN), "blob_reserve_bytes": 0, **self.settings}
        given = Settings(home=self.place.home, database_url=self.place.url, **self.place.settings, **settings)
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

    _deployment: Deployment | None = None

    async def open(self, crash_at: str | None = None) -> None:
        place = self.place
        if self._deployment is None or self._deployment.database_url != place.url:
            settings = {
                "LETHE_EVIDENCE_DIR": str(place.evidence),
                "LETHE_ADMIN_TOKEN": ADMIN_TOKEN,
                "LETHE_KERNEL_LEASE_S": "1",
            }
            self._deployment = Deployment(place.directory, place.url, blobs=place.blobs, settings=settings)
            self._deployment.__enter__()
        extra = {} if crash_at is None else {"LETHE_CRASH_AT": crash_at}
        try:
            self._deployment.start_coordinator(**extra)
        except AssertionError:  # it died before it was ready
            if crash_at is None:
                raise
            self.num_deaths += 1
            await self.open()
            return
        self._http = httpx.AsyncClient(base_url=self._deployment.url(), timeout=20)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None
        if self._deployment is not None:
            self._deployment.processes["coordinator"].end()

    async def arm(self, crash_at: str) -> None:
        """Kill it now, and let its next life end there."""
        await self.close()
        self.num_deaths += 1
        await self.open(crash_at)

    async def call(self, token: str, method: str, path: str, **options: Any) -> Answer:
        try:
            return await super().call(token, method, path, **options)
        except httpx.TransportError:
            assert self._deployment is not None
            if not self._deployment.processes["coordinator"].is_alive:
                self.num_deaths += 1
                await self.close()
                await self.open()
            return None


def crash_points(root: Path) -> list[str]:
    """All that the coordinator has."""
    words = [line.partition('crashpoint("')[2] for path in root.rglob("*.py") for line in path.read_text().splitlines()]
    return sorted({word.partition('"')[0] for word in words if word})
