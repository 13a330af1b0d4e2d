"""The coordinator dies while FedEraser calibrates sealed updates: who was asked is stored, the same model comes out."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.test_erasure_crashes import STAYING, Site, started

SECOND_CALIBRATION = "kernel.after:3"
"""The first kernel rebuilds round 1; then each of the two who stay is calibrated."""


def test_a_kill_amid_calibration_ends_with_the_same_digest(tmp_path: Path) -> None:
    with started(tmp_path, [*STAYING, "calm", "stormy"]) as site:
        calm, stormy = (site.complete_run(name, *STAYING) for name in ("calm", "stormy"))
        for run_id, name in ((calm, "calm"), (stormy, "stormy")):
            site.wait_for_history(run_id, name, *STAYING)
        wanted = rebuilt(site, "calm", calm, crash=False)
        assert rebuilt(site, "stormy", stormy, crash=True) == wanted
        assert [kind for kind, _ in wanted] == ["forgotten", "forgotten"]


def rebuilt(site: Site, leaver: str, run_id: str, *, crash: bool) -> list[tuple[str, str]]:
    """What FedEraser published to forget the leaver."""
    if crash:
        site.deployment.processes["coordinator"].end()
        site.deployment.start_coordinator(LETHE_CRASH_AT=SECOND_CALIBRATION)
    site.file(leaver, method="federaser", guarantee="approximate")
    if crash:
        site.wait_for_death()
        site.deployment.restart("coordinator")
    site.wait_for_certificate(leaver)
    site.deployment.wait_for_run(run_id)
    return [(one["kind"], one["digest"]) for one in site.models(run_id) if one["epoch"] == 1]
