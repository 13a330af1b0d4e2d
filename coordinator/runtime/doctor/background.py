"""The background work of coordinators that run, as they tell of it themselves."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any, Final

from coordinator.runtime.doctor.findings import Finding, Installation
from coordinator.runtime.served_addresses import addresses

TIMEOUT_S: Final = 10.0


async def background(installation: Installation) -> list[Finding] | None:
    """Ask the coordinator that was named, else all that serve this home."""
    urls = (
        [installation.url]
        if installation.url
        else await asyncio.to_thread(addresses, installation.coordinator.settings.home)
    )
    return [finding for url in urls for finding in await _asked(url)] if urls else None


async def _asked(url: str) -> list[Finding]:
    try:
        checks = await asyncio.to_thread(_checks, url)
    except (OSError, ValueError, KeyError, TypeError):
        return [Finding("coordinator-silent", f"no coordinator answers at {url}", "start it, or give another --url")]
    down = {name: said for name, said in checks.items() if said != "ok"}
    remedy = "mend what it names; what died is started again by itself: look into the coordinator's log"
    return [Finding("background-down", f"{name} of {url} is down: {said}", remedy) for name, said in down.items()]


def _checks(url: str) -> dict[str, Any]:
    """Ask directly: no proxy stands before a coordinator that is looked after."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/readyz", timeout=TIMEOUT_S) as answer:
            said = answer.read()
    except urllib.error.HTTPError as error:  # not ready, with the same words
        with error:
            said = error.read()
    return dict(json.loads(said)["checks"])
