"""`lethe doctor` at the end of a test: an installation that was used, crashed and used again has nothing wrong."""

from __future__ import annotations

from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.doctor.examination import Report, examine
from coordinator.runtime.doctor.findings import PATIENCE_S, Installation
from coordinator.runtime.settings import Settings


async def examined(
    settings: Settings, *, repairs: bool = False, is_deep: bool = False, patience_s: float = 0.05
) -> Report:
    """By a coordinator of its own of which nothing runs."""
    coordinator = Coordinator(settings)
    try:
        return await examine(Installation(coordinator, is_deep=is_deep, patience_s=patience_s), repairs=repairs)
    finally:
        await coordinator.close()


async def faults_found(settings: Settings) -> list[str]:
    """Every blob is opened, and the coordinators that serve this home are asked. As the command does it."""
    report = await examined(settings, is_deep=True, patience_s=PATIENCE_S)
    return [f"{one.name}: {one.what}" for one in report.left if one.is_fault]


async def assert_healthy(settings: Settings) -> None:
    """Every blob is opened. While a coordinator runs, only what it is about to tidy up may be there."""
    report = await examined(settings, is_deep=True)
    assert report.is_well, "\n".join(f"{one.name}: {one.what}" for one in report.left)
