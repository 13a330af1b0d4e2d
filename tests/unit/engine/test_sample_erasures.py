"""Requests to forget single samples: the client stays, and trains again once its worker has written them down."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from services.core.errors import Rejected
from tests.support.world import World, with_run
from tests.unit.engine.test_erasures import go_on, trained


def ask(world: World, name: str, *rows: int) -> UUID:
    return world.file(name, scope="samples", samples={name: list(rows)})


def exclude(world: World, name: str, *rows: int, **changes: object) -> UUID:
    """Ask, let the worker confirm that it has them, and fence."""
    return world.fence(name, scope="samples", samples={name: list(rows)}, **changes)


def test_fence_rolls_back_and_keeps_the_client() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = exclude(world, "a", 3, 1)
    cohort = world.cohort(run_id)
    assert (cohort.epoch, cohort.round, cohort.num_members) == (1, 0, 3)
    assert world.state.clients[world.client("a")].status == "active"
    assert world.run(run_id).num_clients == 3
    superseded = {c.round for c in world.checkpoints(run_id) if c.superseded_by == erasure_id}
    assert superseded == {1, 2}
    assert world.state.exclusions[erasure_id, world.client("a")].samples == [1, 3]


def test_client_gets_no_task_before_its_worker_has_acknowledged() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = ask(world, "a", 3)
    world.settle()
    with pytest.raises(Rejected, match="ledger-behind"):
        world.claim("a")
    assert world.claim("b")
    erasure = world.erasure(erasure_id)
    assert (erasure.status, world.cohort(run_id).epoch) == ("received", 0)
    assert "nothing is fenced before the worker has confirmed that it has these samples: a" in (erasure.reason or "")
    world.acknowledge("a")
    (granted,) = world.claim("a")
    assert granted.exclusions == world.state.clients[world.client("a")].exclusions is not None


def test_request_completes_when_all_is_trained_again_and_acknowledged() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = exclude(world, "a", 3)
    world.acknowledge("a")
    world.settle()
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed"
    assert world.provenance[world.cohort(run_id).head_digest or ""] == {"a", "b", "c"}


def test_request_is_not_done_without_the_acknowledgement_even_where_the_others_reach_the_round() -> None:
    training = {"algorithm": "fedavg", "quorum": 2, "deadline_s": 5.0}
    world, _ = with_run("a", "b", "c", training=training, stop={"rounds": 4})
    go_on(world, 1)
    erasure_id = exclude(world, "a", 3, is_tombstoned=True)
    world.settle()
    world.claim_and_submit("b", "c")
    world.advance(6)
    world.tick()
    world.settle()
    assert all(line.done_at for line in world.state.affected_cohorts.values())
    assert world.erasure(erasure_id).status == "executing"
    world.acknowledge("a")
    world.settle()
    assert world.erasure(erasure_id).status == "completed"


def test_worker_that_stays_away_is_named_and_the_request_goes_on_when_it_returns() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = ask(world, "a", 3)
    world.settle()
    assert world.erasure(erasure_id).status == "received"
    world.advance(61)
    world.tick()
    erasure = world.erasure(erasure_id)
    assert erasure.status == "requires_action"
    assert "client a has not acknowledged" in (erasure.reason or "")
    assert world.cohort(run_id).epoch == 0
    world.acknowledge("a")
    world.settle()
    assert (world.erasure(erasure_id).status, world.cohort(run_id).epoch) == ("executing", 1)
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed"


def test_worker_that_cannot_leave_samples_out_holds_the_request_up_and_says_why() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = ask(world, "a", 3)
    world.acknowledge("a", problem="the task Line cannot leave samples out")
    world.settle()
    erasure = world.erasure(erasure_id)
    assert erasure.status == "requires_action"
    assert "the task Line cannot leave samples out" in (erasure.reason or "")
    with pytest.raises(Rejected, match="ledger-behind"):
        world.claim("a")
    world.acknowledge("a")
    world.settle()
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed"


def test_request_that_names_samples_which_are_not_there_fails_and_nothing_is_fenced() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = ask(world, "a", 3, 900)
    world.acknowledge("a", unknown={erasure_id: [900]})
    world.settle()
    erasure = world.erasure(erasure_id)
    assert (erasure.status, erasure.reason) == (
        "failed",
        "client a has no samples 900; check the numbers and file again; nothing was fenced",
    )
    assert world.cohort(run_id).epoch == 0 and not any(c.superseded_by for c in world.checkpoints(run_id))
    assert world.claim("a")
    again = exclude(world, "a", 3)
    world.acknowledge("a")
    world.settle()
    go_on(world, 2)
    assert world.erasure(again).status == "completed"


def test_new_session_has_to_acknowledge_again() -> None:
    world, _ = trained("a", "b", "c")
    exclude(world, "a", 3)
    world.acknowledge("a")
    world.send(m.OpenSession(world.client("a"), "1.0"))
    with pytest.raises(Rejected, match="ledger-behind"):
        world.claim("a")


def test_acknowledgement_of_an_older_state_is_refused() -> None:
    world, _ = trained("a", "b", "c")
    ask(world, "a", 3)
    older = world.state.clients[world.client("a")].exclusions or ""
    ask(world, "a", 4)
    with pytest.raises(Rejected, match="conflict"):
        world.send(m.AcknowledgeExclusions(world.client("a"), older))
    with pytest.raises(Rejected, match="ledger-behind"):
        world.claim("a")


def test_second_request_for_other_samples_of_a_client_is_carried_out_as_well() -> None:
    world, run_id = trained("a", "b", "c")
    first = exclude(world, "a", 3)
    second = exclude(world, "a", 4)
    assert world.cohort(run_id).epoch == 2
    world.acknowledge("a")
    world.settle()
    go_on(world, 2)
    assert world.erasure(first).status == world.erasure(second).status == "completed"
    assert set(world.state.certificates) == {first, second}


def test_request_for_samples_that_are_being_forgotten_is_a_duplicate() -> None:
    world, _ = trained("a", "b", "c")
    first = exclude(world, "a", 3, 4)
    second = exclude(world, "a", 4)
    assert world.erasure(second).duplicate_of == first
    world.acknowledge("a")
    world.settle()
    go_on(world, 2)
    assert world.erasure(second).status == "completed"
    with pytest.raises(Rejected, match="already-erased"):
        exclude(world, "a", 3)


def test_request_for_the_whole_client_is_no_duplicate_of_one_for_its_samples() -> None:
    world, run_id = trained("a", "b", "c")
    samples = exclude(world, "a", 3)
    whole = world.fence("a")
    assert world.erasure(whole).duplicate_of is None
    assert world.state.clients[world.client("a")].status == "erased"
    world.settle()
    go_on(world, 2)
    assert world.erasure(samples).status == world.erasure(whole).status == "completed"
    assert world.provenance[world.cohort(run_id).head_digest or ""] == {"b", "c"}


def test_request_for_samples_of_a_client_that_is_being_forgotten_ends_with_that() -> None:
    world, _ = trained("a", "b", "c")
    whole = world.file("a", needs_approval=True)
    samples = exclude(world, "a", 3)
    assert world.erasure(samples).duplicate_of == whole


def test_samples_of_a_client_that_was_erased_before_the_approval_need_no_fence() -> None:
    world, run_id = trained("a", "b", "c")
    samples = exclude(world, "a", 3, needs_approval=True)
    world.fence("a")
    world.settle()
    assert world.cohort(run_id).epoch == 1
    go_on(world, 2)
    assert world.erasure(samples).status == "completed"


def test_removed_client_needs_no_acknowledgement() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = exclude(world, "a", 3)
    world.send(m.RemoveClient(world.client("a")))
    world.settle()
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed"


def test_leaf_of_a_tree_starts_over_and_its_ancestors_restart_from_the_others() -> None:
    topology = {"kind": "tree", "shape": "balanced"}
    world, run_id = with_run("a", "b", "c", "d", topology=topology, stop={"rounds": 4})
    go_on(world, 2)
    erasure_id = exclude(world, "a", 3)
    actions = {
        line.cohort_name: line.action for line in world.state.affected_cohorts.values() if line.erasure_id == erasure_id
    }
    assert sorted(actions.values()) == ["re-initialised", "re-initialised", "rolled-back"]
    assert len(world.cohorts(run_id)) == 7
    world.acknowledge("a")
    world.settle()
    go_on(world, 4)
    assert world.erasure(erasure_id).status == "completed"


def test_request_whose_worker_was_removed_before_it_confirmed_goes_on_without_it() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = ask(world, "a", 3)
    world.settle()
    world.send(m.RemoveClient(world.client("a")))
    world.settle()
    go_on(world, 2)
    assert (world.erasure(erasure_id).status, world.cohort(run_id).epoch) == ("completed", 1)


def test_request_that_waits_for_its_worker_may_be_tried_again() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = ask(world, "a", 3)
    world.acknowledge("a", problem="the disk is full")
    world.settle()
    world.send(m.RetryErasure(erasure_id))
    assert world.erasure(erasure_id).status == "received"
    world.acknowledge("a")
    world.settle()
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed"


@pytest.mark.parametrize("method", [{}, {"method": "fedforget", "guarantee": "approximate"}])
def test_open_request_for_samples_of_a_client_that_is_then_erased_is_carried_out_with_that(method: Any) -> None:
    world, _ = trained("a", "b", "c")
    samples = ask(world, "a", 1)
    whole = world.fence("a", **method)
    taken_over = world.erasure(samples)
    assert (taken_over.duplicate_of, taken_over.fenced_at, taken_over.status) == (whole, None, "received")
    assert f"carried out as {whole}" in (taken_over.reason or "")
    world.settle()
    assert world.erasure(samples).status != "completed" or world.erasure(whole).status == "completed"


def test_open_request_for_samples_of_several_fails_when_one_of_them_is_erased_approximately() -> None:
    world, _ = trained("a", "b", "c")
    samples = world.file("a", "b", scope="samples", samples={"a": [1], "b": [2]})
    whole = world.fence("a", method="fedforget", guarantee="approximate")
    failed = world.erasure(samples)
    assert failed.status == "failed" and f"a is erased by {whole}; file again" in (failed.reason or "")
