"""Which method `auto` becomes: the cheapest that applies, by the state at the fence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import Traffic
from coordinator.engine.erasure import planner
from services.core.errors import Rejected
from tests.support.world import OFFICER, World, with_run

NAMES = ("a", "b", "c", "d")
TREE = {"kind": "tree", "shape": "balanced"}


def trained(num_rounds: int, **changes: Any) -> tuple[World, UUID]:
    world, run_id = with_run(*NAMES, **{"topology": TREE, "stop": {"rounds": 6}, **changes})
    for _ in range(num_rounds):
        world.claim_and_submit(*NAMES)
        world.settle()
    return world, run_id


def chosen_for(world: World, *names: str, **changes: Any) -> str | None:
    return world.erasure(world.fence(*names, **changes)).chosen


def option(world: World, name: str, client: str, **changes: Any) -> planner.Option:
    erasure_id = world.file(client, needs_approval=True, **changes)
    leavers = frozenset({world.client(client)})
    return next(o for o in planner.options(world.state, world.erasure(erasure_id), leavers) if o.name == name)


def test_a_tree_that_goes_on_training_restarts_from_its_surviving_cohorts() -> None:
    world, _ = trained(3)
    assert chosen_for(world, "a") == "reinit"


def test_a_flat_run_is_rolled_back() -> None:
    world, _ = trained(3, topology={"kind": "flat"})
    assert chosen_for(world, "a") == "retrain"


def test_a_long_recovery_is_dearer_than_training_again() -> None:
    world, _ = trained(2)
    assert chosen_for(world, "a", recovery_rounds=50) == "retrain"


def test_a_line_that_has_lost_nothing_is_kept() -> None:
    """The leaver was never drawn: its cohorts' own heads are clean, and a mean of parts would be worse."""
    world, run_id = trained(0, training={"algorithm": "fedavg", "clients_per_round": 2}, seed=3)
    for _ in range(2):
        world.claim_and_submit(*NAMES)
        world.settle()
    resting = sorted(set(NAMES) - {update.client_name for update in world.state.updates.values()})
    assert resting, "the seed should leave somebody out"
    head = world.cohort(run_id, "root").head_digest
    assert chosen_for(world, resting[0]) == "retrain"
    assert world.cohort(run_id, "root").head_digest == head


def test_of_equal_work_fewer_bytes_win_and_then_the_model_that_keeps_more() -> None:
    world, _ = trained(2)
    erasure_id = world.file("a", needs_approval=True, recovery_rounds=2)
    leavers, wanted = frozenset({world.client("a")}), world.erasure(erasure_id)
    found = {o.name: o for o in planner.options(world.state, wanted, leavers)}
    assert found["reinit"].price < found["retrain"].price
    (again,) = [c for c in found["retrain"].costs if c.cut.cohort.name == "root"]
    (restarted,) = [c for c in found["reinit"].costs if c.cut.cohort.name == "root"]
    assert (again.num_updates, again.num_rounds_kept) == (restarted.num_updates, 0)
    assert restarted.num_rounds_kept == 2


def test_costs_come_from_measured_traffic_where_there_is_any() -> None:
    world, run_id = trained(2, topology={"kind": "flat"})
    assert (option(world, "retrain", "a").num_updates, option(world, "retrain", "b").num_bytes) == (6, 0)
    measured = {world.cohort(run_id).id: Traffic(updates_per_round=1.5, bytes_per_update=100.0)}
    world.state = replace(world.state, traffic=measured)
    found = option(world, "retrain", "c")
    assert (found.num_updates, found.num_bytes) == (3, 300)


def test_a_method_that_does_not_apply_is_refused_when_it_is_filed() -> None:
    world, _ = trained(2, topology={"kind": "flat"})
    with pytest.raises(Rejected, match="method-unavailable: reinit does not apply: no cohort"):
        world.file("a", method="reinit")
    assert not world.state.erasures


def test_the_choice_is_made_by_the_state_at_the_fence() -> None:
    """Filed when there was nothing to restart from; meanwhile the tree has been trained."""
    world, _ = trained(0)
    erasure_id = world.file("a")
    assert world.erasure(erasure_id).chosen is None
    for _ in range(2):
        world.claim_and_submit(*NAMES)
        world.run_kernels()
        world.review()
    world.run_chores("fence")
    assert (world.erasure(erasure_id).method, world.erasure(erasure_id).chosen) == ("auto", "reinit")


def test_a_method_that_no_longer_applies_at_the_fence_gives_way() -> None:
    world, run_id = trained(2)
    last = world.file("b", method="reinit", needs_approval=True)
    world.send(m.CancelRun(run_id, "enough"))
    world.send(m.ApproveErasure(last, OFFICER))
    world.run_chores("fence")
    assert (world.erasure(last).method, world.erasure(last).chosen) == ("reinit", "retrain")


def test_a_policy_that_knows_clients_by_their_updates_profiles_those_who_stay() -> None:
    training = {"algorithm": "fedavg", "clients_per_round": 2}
    world, run_id = trained(4, topology={"kind": "flat"}, training=training, local={"epochs": 4})
    leaver = next(update.client_name for update in world.state.updates.values())
    params = {"participants": "policy", "selection": "k_center"}
    asked: dict[str, Any] = {"method": "federaser", "guarantee": "approximate", "params": params}
    erasure = world.erasure(world.file(leaver, needs_approval=True, **asked))
    seen = replace(world.decisions[-1][0], traffic={world.cohort(run_id).id: Traffic(2.0, 100.0)})
    options = {one.name: one for one in planner.options(seen, erasure, frozenset({world.client(leaver)}))}
    assert {one.num_profiles for one in options["retrain"].costs} == {0}
    by_policy = options["federaser"]
    assert [one.num_profiles for one in by_policy.costs] == [3]
    assert by_policy.work == by_policy.num_updates * by_policy.method.work_per_update + 3 / 4
    assert by_policy.num_bytes == (by_policy.num_updates + 3) * 100


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"participants": "policy", "selection": "nobody"}, "there is no policy"),
        ({"participants": "policy", "selection": {"policy": "k_center", "groups": 3}}, "groups"),
        ({"selection": "k_center"}, "participants: policy"),
        ({"participants": "policy", "selection": "dqn"}, "validation.data"),
        ({"participants": "policy", "selection": {"policy": "dqn", "state": "sha256:" + "0" * 64}}, "upload it first"),
    ],
)
def test_a_selection_that_cannot_be_is_refused_with_what_to_do(params: dict[str, Any], says: str) -> None:
    world, _ = trained(4, topology={"kind": "flat"}, training={"algorithm": "fedavg", "clients_per_round": 2})
    leaver = next(update.client_name for update in world.state.updates.values())
    with pytest.raises(Rejected, match=says):
        world.file(leaver, method="federaser", guarantee="approximate", params=params)
