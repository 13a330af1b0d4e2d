"""The background work of coordinators that run, as they tell of it themselves."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx

from coordinator.runtime.doctor.findings import Finding, Site
from coordinator.runtime.serving import addresses

TIMEOUT_S: Final = 10.0


async def background(site: Site) -> list[Finding] | None:
    """Of the one that was named; else of all that serve this home."""
    urls = [site.url] if site.url else await asyncio.to_thread(addresses, site.coordinator.settings.home)
    return [finding for url in urls for finding in await _asked(url)] if urls else None


async def _asked(url: str) -> list[Finding]:
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            checks: dict[str, Any] = (await client.get(f"{url.rstrip('/')}/readyz")).json()["checks"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return [Finding("coordinator-silent", f"no coordinator answers at {url}", "start it, or give another --url")]
    down = {name: said for name, said in checks.items() if said != "ok"}
    remedy = "mend what it names; what died is started again by itself: look into the coordinator's log"
    return [Finding("background-down", f"{name} of {url} is down: {said}", remedy) for name, said in down.items()]
