"""The process dies at a named instant, is started again, and the run ends with the same bytes as without the crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from services.core import digests
from services.tensors.codec import write_file
from tests.chaos.conftest import Site
from tests.support.deployment import wait_until


def _arm(site: Site, crash_at: str, tmp_path: Path) -> None:
    """Restart the coordinator so that it dies once at the named point."""
    coordinator = site.deployment.processes["coordinator"]
    coordinator.end()
    site.deployment.start_coordinator(LETHE_CRASH_AT=crash_at, LETHE_CRASH_ONCE_FILE=str(tmp_path / "crashed"))


def _dies_and_is_restarted(site: Site) -> None:
    coordinator = site.deployment.processes["coordinator"]
    wait_until(lambda: not coordinator.is_alive, 60, "the coordinator dies at the crash point", site.deployment.logs)
    site.deployment.restart("coordinator")


CRASH_POINTS = [
    "blob.before-rename",
    "blob.after-rename",
    "blob.before-record",
    "kernel.before",
    "kernel.after",
    "kernel.after-adoption",
    "shell.before-commit:12",
    "shell.after-commit:12",
]


WHERE = [("sqlite", point) for point in CRASH_POINTS] + [("postgres", point) for point in CRASH_POINTS[-3:]]


@pytest.mark.parametrize(("backend", "crash_at"), WHERE)
def test_a_kill_at_this_point_changes_no_byte_of_the_result(
    sites: Callable[[str], Site], backend: str, crash_at: str, tmp_path: Path
) -> None:
    site = sites(backend)
    seed = 100 + CRASH_POINTS.index(crash_at)  # a seed of its own: equal bytes would be stored already
    _arm(site, crash_at, tmp_path)
    try:
        run_id = site.create_run(seed=seed)
    except httpx.TransportError:
        run_id = ""  # died after the commit, before the answer: the same request finds the run it made
    _dies_and_is_restarted(site)
    if not run_id:
        site.num_runs -= 1
        run_id = site.create_run(seed=seed)
    site.deployment.wait_for_run(run_id)
    calm = site.create_run(seed=seed)
    site.deployment.wait_for_run(calm)
    assert site.deployment.digests(run_id) == site.deployment.digests(calm)


def test_an_upload_cut_by_a_kill_goes_on_where_it_stopped(sites: Callable[[str], Site], tmp_path: Path) -> None:
    site = sites("sqlite")
    path = tmp_path / "update.safetensors"
    write_file(path, {"w": np.random.default_rng(0).normal(size=2_000_000).astype(np.float32)})
    body = path.read_bytes()
    address = f"/v1/blobs/{digests.of_bytes(body)}?federation_id={site.federation_id}"
    _arm(site, "blob.half-received", tmp_path)
    with site.deployment.admin() as client:
        with pytest.raises(httpx.TransportError):
            client.put(address, content=body)
        _dies_and_is_restarted(site)
        offset = int(client.head(address).headers["Upload-Offset"])
        assert len(body) // 2 <= offset < len(body)
        resumed = {
            "Upload-Offset": str(offset),
            "Upload-Length": str(len(body)),
            "Content-Type": "application/partial-upload",
        }
        assert client.patch(address, content=body[offset:], headers=resumed).status_code == 201
        assert client.head(address).status_code == 200
