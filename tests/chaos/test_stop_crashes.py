"""The coordinator dies while a cluster waits for the word whether the run stops: it comes, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import CLIENTS, Site
from tests.chaos.test_crash_points import _arm, _dies_and_is_restarted

RULE = {"rounds": 40, "accuracy": 0.3, "window": 2, "max_std": 1.0}


def stopping(num_clusters: int) -> dict[str, Any]:
    bounds = {"min_size": 1, "max_size": len(CLIENTS)}
    topology = {"kind": "clusters", "num_clusters": num_clusters, "assignment": "random", **bounds}
    return {"topology": topology, "validation": {"at_clients": True}, "stop": RULE, "seed": 400 + num_clusters}


def models(site: Site, run_id: str) -> list[dict[str, Any]]:
    return list(site.deployment.pages(f"/v1/runs/{run_id}/checkpoints"))


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_run_of_one_cluster_ends_with_the_same_digests(
    sites: Callable[[str], Site], backend: str, tmp_path: Path
) -> None:
    site = sites(backend)
    _arm(site, "post.StopRun", tmp_path)
    run_id = site.create_run(**stopping(1))
    _dies_and_is_restarted(site)
    reason = site.deployment.wait_for_run(run_id)["reason"]
    assert reason.startswith("accuracy 0.") and reason.endswith("of cluster-0")
    calm = site.create_run(**stopping(1))
    assert site.deployment.wait_for_run(calm)["reason"] == reason
    digests = [sorted((one["cohort"], one["round"], one["digest"]) for one in models(site, r)) for r in (run_id, calm)]
    assert digests[0] == digests[1] and digests[0][-1][0] == "merged"


def test_all_clusters_stop_and_are_merged(sites: Callable[[str], Site], tmp_path: Path) -> None:
    site = sites("sqlite")
    _arm(site, "post.StopRun", tmp_path)
    run_id = site.create_run(**stopping(2))
    _dies_and_is_restarted(site)
    run = site.deployment.wait_for_run(run_id)
    assert "reached in round" in run["reason"] and "of cluster-" in run["reason"]
    heads = {one["cohort"]: one for one in models(site, run_id) if one["is_head"]}
    assert set(heads) == {"cluster-0", "cluster-1", "merged"}
    assert all(heads[name]["round"] < RULE["rounds"] for name in ("cluster-0", "cluster-1"))
    with site.deployment.admin() as admin:
        lineage = admin.get(f"/v1/checkpoints/{heads['merged']['id']}/lineage").json()
    trained = {heads[name]["id"] for name in ("cluster-0", "cluster-1") if heads[name]["round"]}
    assert trained and trained <= set(lineage["ancestors"])
