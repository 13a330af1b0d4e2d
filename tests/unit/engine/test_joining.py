"""Clients that join a run which is going: where they take part, from when on, and what stays as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import Cohort, State
from services.core.errors import Rejected
from tests.support.world import World
from tests.unit.engine.test_families import CHAIN, CLUSTERS, cluster_of, go_on, lines, provenance, trained

KNOT = {"kind": "clusters", "num_clusters": 2, "assignment": "knot"}
BALANCED = {"kind": "tree", "shape": "balanced"}


def joined(topology: dict[str, Any], num_rounds: int = 2, **changes: Any) -> tuple[World, UUID]:
    """A run of four clients that eve joins between two rounds."""
    world, run_id = trained(topology, num_rounds, **changes)
    world.enrol("eve")
    world.join(run_id, "eve")
    world.settle()
    return world, run_id


def unchanging(world: World) -> State:
    """The state without what the harness looks up for a message."""
    return replace(world.state, samples={})


def members(world: World, cohort: Cohort) -> set[str]:
    return {x.name for x in world.state.members.values() if x.cohort_id == cohort.id and x.active}


def cohorts_with(world: World, run_id: UUID, name: str) -> set[str]:
    return {c.name for c in world.cohorts(run_id).values() if name in members(world, c)}


def test_a_newcomer_of_a_flat_run_is_asked_from_the_next_round_on() -> None:
    world, run_id = joined({"kind": "flat"})
    assert world.run(run_id).num_clients == 5
    assert world.claim("eve") == ()
    before = world.cohort(run_id, "all").head_digest
    go_on(world, 1)
    assert "eve" not in provenance(world, world.cohort(run_id, "all"))
    assert world.cohort(run_id, "all").head_digest != before
    go_on(world, 1)
    assert "eve" in provenance(world, world.cohort(run_id, "all"))


def test_joining_twice_is_joining_once() -> None:
    world, run_id = joined(BALANCED)
    before = unchanging(world)
    world.join(run_id, "eve", "eve")
    world.join(run_id, "ada")
    assert unchanging(world) == before


@pytest.mark.parametrize(("status", "code"), [("erased", "already-erased"), ("removed", "conflict")])
def test_who_was_erased_or_removed_cannot_join(status: str, code: str) -> None:
    world, run_id = trained({"kind": "flat"})
    if status == "erased":
        world.fence("dan")
    else:
        world.send(m.RemoveClient(world.client("dan")))
    before = unchanging(world)
    with pytest.raises(Rejected) as refused:
        world.join(run_id, "dan")
    assert refused.value.code == code
    assert unchanging(world) == before


def test_who_is_about_to_be_forgotten_and_who_is_unknown_cannot_join() -> None:
    world, run_id = trained({"kind": "flat"})
    world.enrol("eve")
    world.file("eve")
    with pytest.raises(Rejected, match="open request forgets"):
        world.join(run_id, "eve")
    with pytest.raises(Rejected, match="enrol it first"):
        world.join(run_id, "zoe")


def test_a_completed_run_cannot_be_joined_and_says_what_to_do() -> None:
    world, run_id = trained({"kind": "flat"}, num_rounds=4)
    world.enrol("eve")
    with pytest.raises(Rejected, match="start a new run") as refused:
        world.join(run_id, "eve")
    assert refused.value.code == "conflict"


def test_a_paused_run_can_be_joined() -> None:
    world, run_id = trained({"kind": "bi_model"})
    world.send(m.PauseRun(run_id, "operator", "maintenance"))
    world.enrol("eve")
    world.join(run_id, "eve")
    world.settle()
    world.send(m.ResumeRun(run_id))
    world.settle()
    go_on(world, 4)
    assert world.run(run_id).status == "completed"
    assert "eve" in provenance(world, world.cohort(run_id, "leaf:eve"))


@pytest.mark.parametrize("num_answers", [0, 2])
def test_a_bi_model_newcomer_gets_a_local_model_that_counts_with_the_others(num_answers: int) -> None:
    world, run_id = trained({"kind": "bi_model"}, num_rounds=1)
    world.claim_and_submit(*("ada", "bob")[:num_answers])
    world.enrol("eve")
    world.join(run_id, "eve")
    world.settle()
    assert cohorts_with(world, run_id, "eve") == {"root", "leaf:eve"}
    root, leaf = world.cohort(run_id, "root"), world.cohort(run_id, "leaf:eve")
    assert (root.phase, leaf.phase, leaf.round) == ("asking", "waiting", root.round + 1)
    assert provenance(world, leaf) == frozenset()
    go_on(world, 1)
    assert {c.round for c in world.cohorts(run_id).values()} == {2}
    assert {t.round for t in world.state.tasks.values() if t.client_name == "eve"} == {3}
    go_on(world, 2)
    assert world.run(run_id).status == "completed"
    assert provenance(world, world.cohort(run_id, "leaf:eve")) == {"eve"}


def test_a_tree_newcomer_is_paired_with_the_shallowest_leaf() -> None:
    world, run_id = joined(CHAIN)
    pair = world.state.cohorts[world.cohort(run_id, "leaf:eve").parent_id or UUID(int=0)]
    assert members(world, pair) == {"dan", "eve"}
    assert pair.parent_id == world.cohort(run_id, "root").id
    assert world.cohort(run_id, "leaf:dan").parent_id == pair.id
    assert cohorts_with(world, run_id, "eve") == {"root", pair.name, "leaf:eve"}
    assert provenance(world, pair) == {"dan"}, "it starts from the model of the one who was there"
    go_on(world, 2)
    assert world.run(run_id).status == "completed"
    assert provenance(world, pair) == {"dan", "eve"}


def test_isolated_newcomers_train_all_their_rounds_and_are_merged() -> None:
    world, run_id = joined({"kind": "isolated"})
    assert world.cohort(run_id, "leaf:eve").round == 0
    go_on(world, 4)
    assert world.run(run_id).status == "completed"
    assert "eve" in provenance(world, world.cohort(run_id, "merged"))


@pytest.mark.parametrize("inside", [{"kind": "flat"}, {"kind": "tree"}])
def test_a_newcomer_of_random_clusters_joins_one_of_them(inside: dict[str, Any]) -> None:
    world, run_id = joined({**CLUSTERS, "inside": inside})
    own = cluster_of(world, run_id, "eve")
    groups = {world.cohorts(run_id)[name].group for name in cohorts_with(world, run_id, "eve")}
    assert groups == {own.group}
    go_on(world, 3)
    assert world.run(run_id).status == "completed"


def test_full_clusters_take_nobody() -> None:
    world, run_id = trained({**CLUSTERS, "max_size": 2})
    world.enrol("eve")
    before = unchanging(world)
    with pytest.raises(Rejected, match="All 2 clusters hold 2 clients already") as refused:
        world.join(run_id, "eve")
    assert refused.value.code == "conflict"
    assert unchanging(world) == before


def test_a_newcomer_of_measured_clusters_is_profiled_first() -> None:
    world, run_id = joined(KNOT, num_rounds=2)
    (granted,) = world.claim("eve")
    assert granted.cohort.kind == "profile"
    assert granted.task.model_digest in {c.digest for c in world.state.checkpoints.values() if c.kind == "init"}
    world.submit(granted.task)
    (job,) = [j for j in world.state.jobs.values() if j.kernel == "knot_newcomer"]
    assert [u["client"] for u in job.params["updates"]] == ["ada", "bob", "cyd", "dan"]
    world.settle()
    assert cohorts_with(world, run_id, "eve") == {"cluster-0"}
    assert world.cohort(run_id, "profile:eve").phase == "retired"
    go_on(world, 4)
    assert world.run(run_id).status == "completed"
    assert "eve" in provenance(world, world.cohort(run_id, "cluster-0"))


def test_a_newcomer_is_not_measured_against_who_was_erased() -> None:
    world, _ = joined(KNOT, num_rounds=2)
    world.fence("dan")
    (granted,) = [g for g in world.claim("eve") if g.cohort.kind == "profile"]
    world.submit(granted.task)
    (job,) = [j for j in world.state.jobs.values() if j.kernel == "knot_newcomer"]
    assert [u["client"] for u in job.params["updates"]] == ["ada", "bob", "cyd"]


def test_a_run_that_forms_its_clusters_asks_to_come_back() -> None:
    world, run_id = trained(KNOT, num_rounds=0)
    world.enrol("eve")
    with pytest.raises(Rejected, match="forming its clusters"):
        world.join(run_id, "eve")


def test_places_are_kept_for_those_who_are_being_profiled() -> None:
    world, run_id = trained({**KNOT, "max_size": 3}, num_rounds=2)
    world.enrol("eve", "fay", "gil")
    world.join(run_id, "eve", "fay")
    with pytest.raises(Rejected, match="hold 3 clients already"):
        world.join(run_id, "gil")


def test_a_newcomer_that_cannot_be_profiled_leaves_the_run_alone_and_may_try_again() -> None:
    world, run_id = joined(KNOT, num_rounds=2)
    (granted,) = world.claim("eve")
    task = granted.task
    world.send(m.FailTask(task.id, task.client_id, task.lease_token or "", False, "no data"))
    world.settle()
    assert world.run(run_id).status == "running"
    assert world.cohort(run_id, "profile:eve").phase == "retired"
    world.join(run_id, "eve")
    world.settle()
    assert world.cohorts(run_id)["profile:eve:2"].phase == "asking"
    assert world.run(run_id).num_clients == 5


def test_a_run_does_not_wait_for_a_newcomer_that_never_answers() -> None:
    world, run_id = joined(KNOT, num_rounds=2)
    for _ in range(4):
        world.claim_and_submit("ada", "bob", "cyd", "dan")
        world.settle()
    assert world.run(run_id).status == "completed"
    assert world.cohort(run_id, "profile:eve").phase == "retired"


@pytest.mark.parametrize("topology", [{"kind": "flat"}, {"kind": "bi_model"}, CHAIN, {"kind": "isolated"}, CLUSTERS])
@pytest.mark.parametrize("num_rounds", [0, 1])
def test_a_newcomer_can_be_forgotten_at_any_time(topology: dict[str, Any], num_rounds: int) -> None:
    world, run_id = joined(topology)
    go_on(world, num_rounds)
    own = cohorts_with(world, run_id, "eve")
    erasure_id = world.fence("eve")
    assert set(lines(world, erasure_id)) == own
    world.settle()
    go_on(world, 5)
    assert world.erasure(erasure_id).status == "completed"
    assert world.run(run_id).status == "completed"
    assert world.run(run_id).num_clients == 4
    for cohort in world.cohorts(run_id).values():
        assert "eve" not in provenance(world, cohort)


def test_a_leaf_that_never_trained_is_no_source_of_a_new_model() -> None:
    world, run_id = joined({"kind": "bi_model"})
    erasure_id = world.fence("ada")
    (line,) = [
        x for x in world.state.affected_cohorts.values() if x.erasure_id == erasure_id and x.cohort_name == "root"
    ]
    sources = {world.state.checkpoints[source.checkpoint_id].cohort_id for source in line.sources}
    assert sources == {world.cohort(run_id, f"leaf:{name}").id for name in ("bob", "cyd", "dan")}


@pytest.mark.parametrize("topology", [{"kind": "bi_model"}, BALANCED])
def test_draws_among_the_first_members_do_not_depend_on_who_joined(topology: dict[str, Any]) -> None:
    training = {"algorithm": "fedavg", "clients_per_round": 2}
    alone, _ = trained(topology, training=training, stop={"rounds": 9})
    world, _ = joined(topology, training=training, stop={"rounds": 9})
    go_on(alone, 9)
    go_on(world, 9)
    for name in ("ada", "bob", "cyd", "dan"):
        mine = {t.round for t in world.state.tasks.values() if t.client_name == name}
        assert mine == {t.round for t in alone.state.tasks.values() if t.client_name == name}
    drawn = {t.round for t in world.state.tasks.values() if t.client_name == "eve"}
    assert 0 < len(drawn) < 7


def test_buffers_of_other_clusters_keep_their_size() -> None:
    training = {"algorithm": "fedbuff", "buffer_size": 3, "concurrency": 4}
    world, run_id = joined(CLUSTERS, training=training, stop={"rounds": 9})
    own = cluster_of(world, run_id, "eve")
    sizes = {c.name: c.num_clients_of_run for c in world.cohorts(run_id).values() if c.kind == "line"}
    assert {name: size == 5 for name, size in sizes.items()} == {name: name == own.name for name in sizes}
