"""What a fence does to runs that are families of cohorts, and what it leaves alone."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import families
from coordinator.engine import messages as m
from coordinator.engine.entities import Cohort
from tests.support.world import World, with_run

NAMES = ("ada", "bob", "cyd", "dan")
CHAIN = {"kind": "tree", "probabilities": {"ada": 0.1, "cyd": 0.2, "bob": 0.25, "dan": 0.45}}
"""Leaves inside {ada, cyd} inside {ada, bob, cyd} inside everybody."""
CLUSTERS = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}


def trained(topology: dict[str, Any], num_rounds: int = 2, **changes: Any) -> tuple[World, UUID]:
    world, run_id = with_run(*NAMES, topology=topology, **{"stop": {"rounds": 4}, **changes})
    go_on(world, num_rounds)
    return world, run_id


def go_on(world: World, num_rounds: int) -> None:
    for _ in range(num_rounds):
        world.claim_and_submit(*[c.name for c in world.state.clients.values() if c.status == "active"])
        world.settle()


def with_members(world: World, run_id: UUID, *names: str) -> Cohort:
    """The cohort that these clients formed."""
    for cohort in (c for c in world.state.cohorts.values() if c.run_id == run_id):
        if {x.name for x in world.state.members.values() if x.cohort_id == cohort.id} == set(names):
            return cohort
    raise LookupError(names)


def cluster_of(world: World, run_id: UUID, name: str) -> Cohort:
    own = {x.cohort_id for x in world.state.members.values() if x.name == name}
    return next(c for c in world.state.cohorts.values() if c.id in own and c.run_id == run_id)


def lines(world: World, erasure_id: UUID) -> dict[str, str]:
    return {
        line.cohort_name: line.action for line in world.state.affected_cohorts.values() if line.erasure_id == erasure_id
    }


def provenance(world: World, cohort: Cohort) -> frozenset[str]:
    return world.provenance[world.state.cohorts[cohort.id].head_digest or ""]


@pytest.mark.parametrize("kind", ["bi_model", "tree"])
def test_lock_step_cohorts_open_their_rounds_together(kind: str) -> None:
    world, run_id = trained({"kind": kind}, num_rounds=1)
    world.claim_and_submit("ada", "bob", "cyd")
    world.run_kernels()
    world.send(m.OpenRounds(run_id))
    root = world.cohort(run_id, "root")
    assert (root.phase, root.round) == ("asking", 1)
    waiting = [c for c in world.cohorts(run_id).values() if c.phase == "waiting"]
    assert {c.round for c in waiting} == {2}
    world.claim_and_submit("dan")
    world.settle()
    assert {(c.phase, c.round) for c in world.cohorts(run_id).values()} == {("asking", 2)}


def test_rounds_of_a_run_that_is_over_stay_closed() -> None:
    world, run_id = trained({"kind": "bi_model"}, num_rounds=0)
    world.claim_and_submit(*NAMES)
    world.run_kernels()
    world.send(m.CancelRun(run_id, "not needed"))
    before = world.state
    world.send(m.OpenRounds(run_id))
    assert world.state == before


def test_bi_model_restarts_from_the_local_models_of_those_who_stay() -> None:
    world, run_id = trained({"kind": "bi_model"})
    local = {name: world.cohort(run_id, f"leaf:{name}").head_id for name in NAMES}
    erasure_id = world.fence("ada")
    assert lines(world, erasure_id) == {"root": "re-initialised", "leaf:ada": "retired"}
    world.run_kernels()
    root = world.cohort(run_id, "root")
    assert {p.parent_id for p in world.parents(root.head_id)} == {local["bob"], local["cyd"], local["dan"]}
    assert root.round == 2 and provenance(world, root) == {"bob", "cyd", "dan"}


def test_cohorts_without_the_client_go_on_as_if_nothing_happened() -> None:
    fenced, run_id = trained({"kind": "tree", "shape": "balanced"})
    fenced.fence("ada")
    untouched, other = trained({"kind": "tree", "shape": "balanced"})
    for world in (fenced, untouched):
        go_on(world, 3)
    for names in (("cyd", "dan"), ("bob",), ("cyd",), ("dan",)):
        heads = [with_members(w, r, *names).head_digest for w, r in ((fenced, run_id), (untouched, other))]
        assert heads[0] == heads[1]


def test_only_child_takes_the_place_of_its_parent() -> None:
    world, run_id = trained({"kind": "tree", "shape": "balanced"})
    erasure_id = world.fence("ada")
    pair = with_members(world, run_id, "ada", "bob")
    assert lines(world, erasure_id) == {"leaf:ada": "retired", pair.name: "retired", "root": "re-initialised"}
    assert with_members(world, run_id, "bob").parent_id == world.cohort(run_id, "root").id


def test_inner_cohorts_restart_from_what_is_left_inside_them() -> None:
    world, run_id = trained(CHAIN)
    erasure_id = world.fence("ada")
    inner = with_members(world, run_id, "ada", "bob", "cyd")
    assert lines(world, erasure_id)[inner.name] == lines(world, erasure_id)["root"] == "re-initialised"
    world.run_kernels()
    assert provenance(world, inner) == {"bob", "cyd"}
    assert provenance(world, world.cohort(run_id, "root")) == {"bob", "cyd", "dan"}


def test_cohort_never_restarts_from_one_inside_it_that_had_the_client() -> None:
    """Also when somebody left before, so that the two have as many members."""
    world, run_id = trained(CHAIN)
    world.send(m.RemoveClient(world.client("bob")))
    world.fence("ada")
    world.settle()
    for cohort in world.cohorts(run_id).values():
        assert "ada" not in provenance(world, cohort)


def test_second_erasure_finds_the_client_behind_a_re_initialisation() -> None:
    world, run_id = trained({"kind": "bi_model"})
    world.fence("ada")
    world.settle()
    restarted = world.cohort(run_id, "root").head_id
    go_on(world, 1)
    erasure_id = world.fence("bob", method="retrain")
    assert restarted is not None and world.state.checkpoints[restarted].superseded_by == erasure_id
    assert world.cohort(run_id, "root").head_id is None


def test_cluster_without_the_client_keeps_its_work() -> None:
    world, run_id = trained(CLUSTERS, num_rounds=1)
    leaver = cluster_of(world, run_id, "ada")
    other = next(c for c in world.cohorts(run_id).values() if c.kind == "line" and c.id != leaver.id)
    tasks = {t.id: t for t in world.state.tasks.values() if t.cohort_id == other.id}
    world.fence("ada")
    assert world.state.cohorts[other.id] == other
    assert {t.id: t for t in world.state.tasks.values() if t.cohort_id == other.id} == tasks


def test_merged_model_is_made_again_without_the_client() -> None:
    world, run_id = trained(CLUSTERS, num_rounds=4)
    assert world.run(run_id).status == "completed" and provenance(world, world.cohort(run_id, "merged")) == set(NAMES)
    world.fence("ada")
    assert "ada" not in provenance(world, world.cohort(run_id, "merged"))
    go_on(world, 4)
    assert world.run(run_id).status == "completed"
    assert provenance(world, world.cohort(run_id, "merged")) == {"bob", "cyd", "dan"}


def test_merge_under_way_is_stopped_when_the_client_is_in_it() -> None:
    world, run_id = trained(CLUSTERS, num_rounds=3)
    world.claim_and_submit(*NAMES)
    world.run_kernels()
    world.run_chores("post")
    merging = world.lease_job("kernel")
    assert merging is not None and merging.kernel == "merge_models"
    world.fence("ada")
    assert world.send(world.outcome_of(merging)) is False
    world.settle()
    assert "ada" not in provenance(world, world.cohort(run_id, "merged"))


def completed_with_idle_cyd(max_size: int) -> tuple[World, UUID, Cohort]:
    """A completed run in which cyd, too late for its only round, is in no model; the others of its cluster are gone."""
    topology = {"kind": "clusters", "num_clusters": 4 // max_size, "assignment": "random", "max_size": max_size}
    training = {"algorithm": "fedavg", "quorum": 1, "deadline_s": 5.0}
    world, run_id = with_run(*NAMES, topology=topology, stop={"rounds": 1}, training=training)
    world.claim_and_submit("ada", "bob", "dan")
    world.advance(6)
    world.tick()
    world.settle()
    own = cluster_of(world, run_id, "cyd")
    for name in sorted({x.name for x in world.state.members.values() if x.cohort_id == own.id} - {"cyd"}):
        world.send(m.RemoveClient(world.client(name)))
    assert world.run(run_id).status == "completed" and own.round == 1
    return world, run_id, own


def test_merged_model_is_made_again_without_a_line_that_is_gone() -> None:
    world, run_id, own = completed_with_idle_cyd(max_size=2)
    erasure_id = world.fence("cyd")
    assert lines(world, erasure_id) == {own.name: "retired"} and world.run(run_id).status == "running"
    world.settle()
    merged = world.cohort(run_id, "merged")
    other = next(c for c in world.cohorts(run_id).values() if c.kind == "line" and c.phase != "retired")
    assert {p.parent_id for p in world.parents(merged.head_id)} == {other.head_id}
    assert world.run(run_id).status == world.erasure(erasure_id).status == "completed"


def test_merged_model_goes_with_the_last_line() -> None:
    world, run_id, own = completed_with_idle_cyd(max_size=4)
    erasure_id = world.fence("cyd")
    assert lines(world, erasure_id) == {own.name: "retired"} and world.cohort(run_id, "merged").head_id is None
    world.settle()
    assert world.run(run_id).status == world.erasure(erasure_id).status == "completed"
    assert "serves no model" in (world.run(run_id).reason or "")


def test_merge_of_a_cancelled_run_is_not_waited_for() -> None:
    world, run_id = trained(CLUSTERS, num_rounds=4)
    world.fence("bob")
    world.send(m.CancelRun(run_id, "not needed"))
    erasure_id = world.fence("ada")
    world.settle()
    assert world.erasure(erasure_id).status == "completed"


def test_isolated_run_goes_on_when_one_client_is_removed() -> None:
    world, run_id = trained({"kind": "isolated"}, num_rounds=1)
    world.send(m.RemoveClient(world.client("ada")))
    go_on(world, 4)
    assert world.run(run_id).status == "completed"
    assert world.cohort(run_id, "leaf:ada").round == 1 and world.cohort(run_id, "leaf:bob").round == 4


def test_run_ends_when_the_last_cohort_at_work_is_retired() -> None:
    world, run_id = trained({"kind": "isolated"}, num_rounds=0)
    for _ in range(4):
        world.claim_and_submit("bob", "cyd", "dan")
        world.settle()
    world.fence("ada")
    world.settle()
    assert world.run(run_id).status == "completed"


def test_run_fails_when_it_began_with_a_model_of_a_forgotten_client() -> None:
    world, run_id = trained({"kind": "bi_model"})
    later = world.create_run(name="later", init=world.cohort(run_id, "root").head_digest, clients=["cyd", "dan"])
    world.settle()
    world.fence("ada")
    world.settle()
    assert (world.run(later).status, world.run(later).reason) == ("failed", "an erasure left no cohort of the run")
    assert {c.phase for c in world.state.cohorts.values() if c.run_id == later} == {"retired"}


def test_a_tree_looks_for_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none, and so many cohorts that each of them must not look through all."""

    def look(*_: object) -> None:
        raise AssertionError("only clusters have a profile")

    monkeypatch.setattr(families, "profile_of", look)
    world, run_id = trained(CHAIN, num_rounds=4)
    assert world.run(run_id).status == "completed"
