"""Who can read the files, and what processes that were killed left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.runtime.backup.saving import HELD
from coordinator.runtime.coordinator import private_places
from coordinator.runtime.doctor.findings import Finding, Installation, some
from coordinator.runtime.scratch import Scratch
from services.core.private_files import exposed, tighten, tighten_directory


async def permissions(installation: Installation) -> list[Finding]:
    settings = installation.coordinator.settings
    keys = settings.evidence_path / "keys"
    found = await asyncio.to_thread(exposed, *private_places(settings))
    if settings.home.stat().st_mode & 0o077:
        found.append(settings.home)
    of_keys = sorted(str(path) for path in found if path == keys or keys in path.parents)
    others = sorted(str(path) for path in found if not (path == keys or keys in path.parents))
    remedy = "lethe doctor --repair takes the rights away; if it cannot, as their owner: chmod -R go= DIRECTORY"
    findings = []
    if of_keys:
        findings.append(Finding("key-permissions", f"others may use keys: {some(of_keys)}", remedy))
    if others:
        findings.append(Finding("permissions", f"others may use files of the installation: {some(others)}", remedy))
    return findings


async def take_rights_away(installation: Installation) -> None:
    settings = installation.coordinator.settings
    await asyncio.to_thread(tighten_directory, settings.home)
    await asyncio.to_thread(tighten, *private_places(settings))


async def scratch(installation: Installation) -> list[Finding]:
    """Look twice: whoever makes a directory locks it a moment later."""
    left = await asyncio.to_thread(_left_over, installation)
    if left:
        await installation.wait()
        left &= await asyncio.to_thread(_left_over, installation)
    what = f"{len(left)} scratch directories of processes that were killed"
    remedy = "lethe doctor --repair removes them, as the next start of a coordinator does"
    return [Finding("scratch", what, remedy)] if left else []


async def sweep_scratch(installation: Installation) -> None:
    for place in _places(installation):
        await asyncio.to_thread(place.sweep)


def _left_over(installation: Installation) -> set[Path]:
    return set().union(*(place.left_over() for place in _places(installation)))


def _places(installation: Installation) -> list[Scratch]:
    settings = installation.coordinator.settings
    return [Scratch(settings.home / "scratch"), Scratch(settings.blob_path / HELD)]
