"""The stop rule of a run of clusters: its best line is good and steady, then all of them stop and are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import Cohort
from tests.support.world import World, with_run

NAMES = ("ada", "bob", "cyd", "dan")
CLUSTERS = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}
FIRST, SECOND = "cluster-0", "cluster-1"


def judged_run(judged: Mapping[str, Sequence[float]], **changes: Any) -> tuple[World, UUID]:
    """A run of two clusters whose models of rounds 1, 2, ... are judged as given, by all of their clients alike."""
    given = {"topology": CLUSTERS, "validation": {"at_clients": True}, "stop": {"rounds": 9, "accuracy": 0.8}}
    world, run_id = with_run(*NAMES, **{**given, **changes})

    def figures(digest: str) -> dict[str, float]:
        asked = [r for r in world.state.rounds.values() if r.kind == "evaluate" and r.model_digest == digest]
        accuracies = judged[world.state.cohorts[asked[0].cohort_id].name]
        return {"accuracy": accuracies[min(asked[0].number, len(accuracies)) - 1], "loss": 1.0}

    world.figures_of = figures
    return world, run_id


def go_on(world: World, num_rounds: int) -> None:
    """Each round is trained, then judged."""
    for _ in range(2 * num_rounds):
        world.claim_and_submit(*[c.name for c in world.state.clients.values() if c.status == "active"])
        world.settle()


def proposed(world: World) -> None:
    """Up to the moment when a line asks whether the run is to stop."""
    while not [job for job in world.state.jobs.values() if job.params.get("message") == "StopRun"]:
        world.claim_and_submit(*NAMES)
        world.run_kernels()


def members_of(world: World, cohort: Cohort) -> list[str]:
    return sorted(x.name for x in world.state.members.values() if x.cohort_id == cohort.id)


def stopped() -> tuple[World, UUID]:
    """A run whose first cluster is good in its second round."""
    world, run_id = judged_run({FIRST: [0.5, 0.9], SECOND: [0.3]})
    go_on(world, 4)
    return world, run_id


def test_every_cluster_stops_when_the_best_one_is_good_and_they_are_merged() -> None:
    world, run_id = stopped()
    first, second, merged = (world.cohort(run_id, name) for name in (FIRST, SECOND, "merged"))
    assert (first.round, second.round) == (2, 2) and first.phase == second.phase == "finished"
    assert world.run(run_id).status == "completed"
    assert world.run(run_id).reason == "accuracy 0.9000 reached in round 2 of cluster-0"
    assert {p.parent_id for p in world.parents(merged.head_id)} == {first.head_id, second.head_id}
    assert merged.reason == "merged from 2 lines"


def test_a_cluster_that_trains_faster_stops_the_slower_one_in_the_middle_of_its_round() -> None:
    world, run_id = judged_run({FIRST: [0.5, 0.9], SECOND: [0.3]})
    fast = members_of(world, world.cohort(run_id, FIRST))
    for _ in range(4):
        world.claim_and_submit(*fast)
        world.settle()
    slow = world.cohort(run_id, SECOND)
    assert (slow.phase, slow.round, world.open_tasks(slow.id)) == ("finished", 0, [])
    merged = world.cohort(run_id, "merged")
    assert {p.parent_id for p in world.parents(merged.head_id)} == {world.cohort(run_id, FIRST).head_id}


def test_a_good_and_steady_line_is_overruled_by_a_better_one_that_is_not_steady() -> None:
    rule = {"rounds": 9, "accuracy": 0.8, "window": 2, "max_std": 0.02}
    world, run_id = judged_run({FIRST: [0.85], SECOND: [0.5, 0.95]}, stop=rule)
    go_on(world, 2)
    assert world.run(run_id).status == "running" and world.cohort(run_id, FIRST).round == 2
    go_on(world, 2)
    assert world.run(run_id).reason == "accuracy 0.9500 reached in round 3 of cluster-1"
    assert [world.cohort(run_id, name).round for name in (FIRST, SECOND)] == [3, 3]


def test_a_line_with_all_its_rounds_that_is_the_best_again_lets_the_others_stop() -> None:
    """A better one that was not steady overruled it; when that has fallen and is steady, the run stops."""
    rule = {"rounds": 6, "accuracy": 0.8, "window": 2, "max_std": 0.02}
    world, run_id = judged_run({FIRST: [0.9], SECOND: [0.5, 0.95, 0.85]}, stop=rule)
    go_on(world, 2)
    fast = members_of(world, world.cohort(run_id, FIRST))
    for _ in range(8):
        world.claim_and_submit(*fast)
        world.settle()
    assert (world.cohort(run_id, FIRST).phase, world.run(run_id).status) == ("finished", "running")
    go_on(world, 2)
    assert world.cohort(run_id, SECOND).reason == "accuracy 0.9000 reached in round 6 of cluster-0"
    assert world.run(run_id).status == "completed" and world.cohort(run_id, SECOND).round == 4


def test_a_line_that_is_overruled_ends_with_its_last_round() -> None:
    rule = {"rounds": 2, "accuracy": 0.8, "window": 2, "max_std": 0.02}
    world, run_id = judged_run({FIRST: [0.85], SECOND: [0.5, 0.95]}, stop=rule)
    go_on(world, 3)
    assert (world.run(run_id).status, world.run(run_id).reason) == ("completed", "all 2 rounds done")


def test_parts_of_a_cluster_stop_nothing() -> None:
    topology = {
        "kind": "clusters",
        "num_clusters": 1,
        "assignment": "random",
        "max_size": 4,
        "inside": {"kind": "tree"},
    }
    names = [c.name for c in judged_run({}, topology=topology)[0].state.cohorts.values()]
    judged = {name: [0.1] if name.endswith("root") else [0.9] for name in names}
    world, run_id = judged_run(judged, topology=topology, stop={"rounds": 2, "accuracy": 0.8})
    go_on(world, 4)
    assert world.run(run_id).reason == "all 2 rounds done"
    judged["cluster-0/root"] = [0.9]
    world, run_id = judged_run(judged, topology=topology, stop={"rounds": 2, "accuracy": 0.8})
    go_on(world, 4)
    assert {c.round for c in world.cohorts(run_id).values()} == {1} and world.run(run_id).status == "completed"


def test_a_fence_takes_the_proposal_of_its_line_back() -> None:
    world, run_id = judged_run({FIRST: [0.9], SECOND: [0.3]})
    proposed(world)
    world.fence(members_of(world, world.cohort(run_id, FIRST))[0])
    before = world.cohort(run_id, SECOND)
    world.run_chores("post")
    assert world.run(run_id).status == "running" and world.cohort(run_id, SECOND) == before


def test_a_proposal_that_is_delivered_twice_is_decided_once() -> None:
    world, run_id = judged_run({FIRST: [0.9], SECOND: [0.3]})
    proposed(world)
    job = next(job for job in world.state.jobs.values() if job.params.get("message") == "StopRun")
    world.run_chores("post")
    before = world.state
    world.send(m.StopRun(run_id, world.cohort(run_id, FIRST).id, "once more", job.id))
    assert world.state.cohorts == before.cohorts and world.state.runs == before.runs


def test_a_proposal_of_a_run_that_was_cancelled_stops_nothing() -> None:
    world, run_id = judged_run({FIRST: [0.9], SECOND: [0.3]})
    proposed(world)
    world.send(m.CancelRun(run_id, "not needed"))
    world.settle()
    assert (world.run(run_id).status, world.run(run_id).reason) == ("cancelled", "not needed")


@pytest.mark.parametrize("cluster", [FIRST, SECOND])
def test_a_line_that_is_cut_after_the_stop_is_trained_again_to_where_it_was(cluster: str) -> None:
    world, run_id = judged_run({FIRST: [0.5, 0.9], SECOND: [0.3]})
    go_on(world, 3)
    leaver = members_of(world, world.cohort(run_id, cluster))[0]
    erasure_id = world.fence(leaver)
    assert (world.run(run_id).status, world.cohort(run_id, cluster).round) == ("running", 0)
    go_on(world, 4)
    assert world.run(run_id).status == world.erasure(erasure_id).status == "completed"
    assert world.cohort(run_id, cluster).round == 2
    assert leaver not in world.provenance[world.cohort(run_id, "merged").head_digest or ""]


def test_a_line_that_is_retrained_stops_with_the_others() -> None:
    world, run_id = judged_run({FIRST: [0.5, 0.6, 0.9], SECOND: [0.3]})
    go_on(world, 2)
    erasure_id = world.fence(members_of(world, world.cohort(run_id, SECOND))[0])
    go_on(world, 2)
    assert [world.cohort(run_id, name).round for name in (FIRST, SECOND)] == [3, 1]
    assert world.run(run_id).status == world.erasure(erasure_id).status == "completed"


def test_a_line_that_a_method_mends_ends_when_it_has_recovered() -> None:
    world, run_id = judged_run({FIRST: [0.5, 0.6, 0.9], SECOND: [0.3]})
    go_on(world, 2)
    leaver = members_of(world, world.cohort(run_id, SECOND))[0]
    erasure_id = world.fence(leaver, method="federaser", guarantee="approximate", recovery_rounds=2)
    world.run_kernels()
    assert world.cohort(run_id, SECOND).unlearning is not None
    fast = members_of(world, world.cohort(run_id, FIRST))
    for _ in range(3):
        world.claim_and_submit(*fast)
        world.settle()
    assert world.cohort(run_id, FIRST).phase == "finished" and world.cohort(run_id, SECOND).unlearning is not None
    go_on(world, 5)
    assert world.run(run_id).status == world.erasure(erasure_id).status == "completed"
    assert world.cohort(run_id, SECOND).round == 4, "the round that it had, and two of recovery"
