"""When a synchronous round closes, over what, and what happens when it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from services.core.errors import Rejected
from tests.support.world import World, with_run

QUORUM_OF_TWO = {"algorithm": "fedavg", "quorum": 2, "deadline_s": 30.0}


def give_up(world: World, *names: str) -> None:
    for name in names:
        for granted in world.claim(name):
            task = granted.task
            world.send(m.FailTask(task.id, task.client_id, task.lease_token or "", False, "no data"))


def rounds_done(world: World, run_id: UUID) -> Iterator[list[str]]:
    """Per published round, the names of the clients in it, in the order of aggregation."""
    for checkpoint in world.checkpoints(run_id)[1:]:
        yield [world.state.clients[c.client_id].name for c in world.contributions(checkpoint)]


def test_run_trains_to_its_last_round_and_completes() -> None:
    world, run_id = with_run("a", "b", stop={"rounds": 3})
    for _ in range(3):
        world.claim_and_submit("a", "b")
        world.settle()
    assert world.run(run_id).status == "completed"
    assert [c.round for c in world.checkpoints(run_id)] == [0, 1, 2, 3]


def test_updates_are_aggregated_in_the_order_of_names_with_their_samples_as_weights() -> None:
    world, run_id = with_run("a", "b", "c")
    for name, num_samples in (("c", 30), ("a", 10), ("b", 20)):
        world.submit(world.claim(name)[0].task, num_samples)
    world.settle()
    published = world.contributions(world.checkpoints(run_id)[1])
    assert [c.weight for c in published] == [10.0, 20.0, 30.0]
    assert list(rounds_done(world, run_id)) == [["a", "b", "c"]]


def test_equal_answers_give_equal_models_whatever_the_order() -> None:
    digests = set()
    for order in ("abc", "cba", "bac"):
        world, run_id = with_run("a", "b", "c")
        world.claim_and_submit(*order)
        world.settle()
        digests.add(world.cohort(run_id).head_digest)
    assert len(digests) == 1


def test_round_without_a_deadline_waits_for_everybody() -> None:
    world, run_id = with_run("a", "b", "c", training={"algorithm": "fedavg", "quorum": 2})
    world.claim_and_submit("a", "b")
    world.advance(100_000)
    world.tick()
    assert world.awaited_round(run_id).status == "open"
    world.claim_and_submit("c")
    assert world.cohort(run_id).phase == "computing"


def test_round_closes_early_when_everybody_has_answered() -> None:
    world, run_id = with_run("a", "b", "c", training=QUORUM_OF_TWO)
    world.claim_and_submit("a", "b", "c")
    assert world.cohort(run_id).phase == "computing"


def test_deadline_closes_a_round_that_has_its_quorum_and_revokes_the_stragglers() -> None:
    world, run_id = with_run("a", "b", "c", training=QUORUM_OF_TWO)
    world.claim("c")
    world.claim_and_submit("a", "b")
    world.advance(30)
    world.tick()
    assert world.cohort(run_id).phase == "computing"
    assert world.task_of("c").status == "revoked"


def test_deadline_below_the_quorum_waits_for_the_quorum_alone() -> None:
    world, run_id = with_run("a", "b", "c", training=QUORUM_OF_TWO)
    world.claim_and_submit("a")
    world.advance(30)
    world.tick()
    assert world.awaited_round(run_id).status == "open"
    world.claim_and_submit("b")
    assert world.cohort(run_id).phase == "computing"


def test_deadline_is_ignored_before_its_time() -> None:
    world, run_id = with_run("a", "b", "c", training=QUORUM_OF_TWO)
    world.claim_and_submit("a", "b")
    world.advance(29)
    world.send(m.DeadlinePassed(world.awaited_round(run_id).id))
    assert world.awaited_round(run_id).status == "open"


def test_late_update_is_refused_and_counted() -> None:
    world, run_id = with_run("a", "b", "c", training=QUORUM_OF_TWO)
    (late,) = world.claim("c")
    world.claim_and_submit("a", "b")
    round_id = world.awaited_round(run_id).id
    world.advance(30)
    world.tick()
    with pytest.raises(Rejected, match="round-closed"):
        world.submit(late.task)
    assert world.state.rounds[round_id].num_late == 1
    world.settle()
    assert list(rounds_done(world, run_id)) == [["a", "b"]]


def test_round_goes_on_with_a_quorum_when_the_others_failed() -> None:
    world, run_id = with_run("a", "b", "c", training={"algorithm": "fedavg", "quorum": 2})
    give_up(world, "c")
    world.claim_and_submit("a", "b")
    assert world.cohort(run_id).phase == "computing"


def test_run_is_held_when_its_quorum_is_out_of_reach() -> None:
    world, run_id = with_run("a", "b")
    world.claim_and_submit("a")
    give_up(world, "b")
    world.settle()
    run = world.run(run_id)
    assert (run.status, run.hold) == ("paused", "quorum")
    assert run.reason is not None and "1 of 2 needed answers" in run.reason


def test_resuming_a_held_run_gives_the_failed_tasks_out_again() -> None:
    world, run_id = with_run("a", "b")
    world.claim_and_submit("a")
    give_up(world, "b")
    world.settle()
    world.send(m.ResumeRun(run_id))
    world.claim_and_submit("b")
    world.settle()
    assert list(rounds_done(world, run_id)) == [["a", "b"]]


def test_resuming_a_run_leaves_the_failed_tasks_of_other_runs_alone() -> None:
    world, first = with_run("a")
    second = world.create_run(name="other")
    world.settle()
    give_up(world, "a")
    world.settle()
    world.send(m.CancelRun(first, "not needed"))
    world.send(m.ResumeRun(second))
    statuses = {t.run_id: t.status for t in world.state.tasks.values()}
    assert statuses == {first: "failed", second: "ready"}


def test_uniform_selection_asks_as_many_as_wanted_and_the_same_ones_again() -> None:
    asked = []
    for _ in range(2):
        world, _ = with_run(*"abcdef", seed=3, training={"algorithm": "fedavg", "clients_per_round": 2})
        asked.append({t.client_name for t in world.state.tasks.values()})
    assert asked[0] == asked[1] and len(asked[0]) == 2


def test_round_robin_selection_asks_everybody_in_turn() -> None:
    training = {"algorithm": "fedavg", "clients_per_round": 2}
    world, run_id = with_run(*"abcdef", training=training, selection="round_robin", stop={"rounds": 3})
    for _ in range(3):
        world.claim_and_submit(*"abcdef")
        world.settle()
    chosen = list(rounds_done(world, run_id))
    assert sorted(name for names in chosen for name in names) == list("abcdef")


def test_retention_asks_to_collect_the_updates_that_are_no_longer_kept() -> None:
    world, run_id = with_run("a", retention={"updates": 2}, stop={"rounds": 4})
    for _ in range(4):
        world.claim_and_submit("a")
        world.settle()
    collected = [j.params["up_to_round"] for j in world.state.jobs.values() if j.kind == "collect-updates"]
    assert collected == [1, 2] and world.run(run_id).status == "completed"


def test_a_history_is_asked_to_keep_each_round_before_its_updates_are_dropped() -> None:
    world, _ = with_run("a", retention={"updates": 1}, history={"updates": {}}, stop={"rounds": 3})
    for _ in range(3):
        world.claim_and_submit("a")
        world.settle()
    jobs = list(world.state.jobs.values())
    assert [j.params["up_to_round"] for j in jobs if j.kind == "keep-updates"] == [0, 1, 2]
    assert not [j for j in jobs if j.kind == "collect-updates"]


def test_everything_is_kept_without_a_retention_rule() -> None:
    world, _ = with_run("a", stop={"rounds": 2})
    for _ in range(2):
        world.claim_and_submit("a")
        world.settle()
    assert not [j for j in world.state.jobs.values() if j.kind == "collect-updates"]
