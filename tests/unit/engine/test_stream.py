"""Asynchronous rounds: the buffer, who is kept busy, what a task trains from, and how old it may be."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import OPEN_TASK, Task
from services.core.errors import Rejected
from tests.support.world import World, with_run


def streaming(*names: str, buffer: int, concurrency: int, rounds: int = 10, **training: Any) -> tuple[World, UUID]:
    wanted = {"algorithm": "fedbuff", "buffer_size": buffer, "concurrency": concurrency, **training}
    return with_run(*names, training=wanted, stop={"rounds": rounds}, selection="round_robin")


def names_with(world: World, status: str) -> list[str]:
    return sorted(t.client_name for t in world.state.tasks.values() if t.status == status)


def give_up(world: World, task: Task) -> None:
    world.send(m.FailTask(task.id, task.client_id, task.lease_token or "", False, "no data"))


def test_server_steps_when_the_buffer_is_full() -> None:
    world, run_id = streaming(*"abcd", buffer=2, concurrency=4)
    world.claim_and_submit("a")
    assert world.cohort(run_id).num_buffered == 1 and world.cohort(run_id).phase == "asking"
    world.claim_and_submit("b")
    assert world.cohort(run_id).num_buffered == 0 and world.cohort(run_id).phase == "computing"


def test_unfinished_work_goes_on_into_the_next_round() -> None:
    world, run_id = streaming(*"abcd", buffer=2, concurrency=4)
    (slow,) = world.claim("c")
    world.claim_and_submit("a", "b")
    world.settle()
    world.submit(slow.task)
    assert world.cohort(run_id).num_buffered == 1
    assert [u.base_round for u in world.updates("buffered")] == [0]


def test_standby_takes_the_place_of_a_client_that_finished() -> None:
    world, _ = streaming(*"abcd", buffer=2, concurrency=2)
    ready, (standby,) = names_with(world, "ready"), names_with(world, "standby")
    assert len(ready) == 2 and world.claim(standby) == ()
    world.claim_and_submit(ready[0])
    assert len(world.claim(standby)) == 1


def test_standby_takes_the_place_of_a_client_that_failed() -> None:
    world, _ = streaming(*"abcd", buffer=2, concurrency=2)
    ready, (standby,) = names_with(world, "ready"), names_with(world, "standby")
    give_up(world, world.claim(ready[0])[0].task)
    assert len(world.claim(standby)) == 1


def test_standby_that_leaves_frees_no_place() -> None:
    world, _ = streaming(*"abcde", buffer=3, concurrency=3)
    standby = names_with(world, "standby")
    world.send(m.RemoveClient(world.client(standby[0])))
    assert names_with(world, "standby") == standby[1:]


def test_client_is_in_a_buffer_once() -> None:
    world, _ = streaming("a", "b", "c", buffer=2, concurrency=3)
    world.claim_and_submit("a")
    assert world.claim("a") == ()
    world.claim_and_submit("b")
    world.settle()
    for checkpoint in world.state.checkpoints.values():
        clients = [c.client_id for c in world.contributions(checkpoint)]
        assert len(clients) == len(set(clients))


def test_task_claimed_after_a_step_trains_from_the_newest_model() -> None:
    world, run_id = streaming(*"abcd", buffer=2, concurrency=4)
    world.claim_and_submit("a", "b")
    world.settle()
    (granted,) = world.claim("c")
    assert granted.task.base_round == 1
    assert granted.task.model_digest == world.cohort(run_id).head_digest


def test_lapsed_task_is_bound_to_the_newest_model_when_claimed_again() -> None:
    world, _ = streaming(*"abcd", buffer=2, concurrency=4)
    (first,) = world.claim("c")
    world.claim_and_submit("a", "b")
    world.settle()
    world.advance(61)
    world.tick()
    (second,) = world.claim("c")
    assert (first.task.base_round, second.task.base_round) == (0, 1)


def test_older_update_weighs_less() -> None:
    world, run_id = streaming("a", "b", "c", buffer=1, concurrency=3, staleness_exponent=0.5)
    (slow,) = world.claim("c")
    world.claim_and_submit("a")
    world.settle()
    world.submit(slow.task, num_samples=10)
    world.settle()
    (contribution,) = world.contributions(world.checkpoints(run_id)[2])
    assert (contribution.staleness, contribution.weight) == (1, 10 * 2**-0.5)


def test_update_from_a_model_beyond_the_bound_is_refused_counted_and_claimed_anew() -> None:
    world, run_id = streaming("a", "b", "c", buffer=1, concurrency=3, staleness_bound=0)
    (slow,) = world.claim("c")
    world.claim_and_submit("a")
    world.settle()
    with pytest.raises(Rejected, match="too-stale"):
        world.submit(slow.task)
    assert world.state.rounds[slow.task.round_id].num_late == 1
    (again,) = world.claim("c")
    assert again.task.id == slow.task.id and again.task.base_round == world.cohort(run_id).round == 1


def test_buffer_and_concurrency_shrink_to_a_small_cohort() -> None:
    world, run_id = streaming("a", "b", buffer=10, concurrency=20)
    assert world.awaited_round(run_id).quorum == 2
    world.claim_and_submit("a", "b")
    world.settle()
    assert world.cohort(run_id).round == 1


def test_updates_that_came_together_are_used_in_turn() -> None:
    world, run_id = streaming(*"abc", buffer=1, concurrency=3)
    tasks = [granted.task for name in "abc" for granted in world.claim(name)]
    world.send_together([world.answer_to(task) for task in tasks])
    world.settle()
    assert world.cohort(run_id).round == 3 and world.cohort(run_id).num_buffered == 0


def test_buffers_of_two_runs_are_kept_apart() -> None:
    world, first = streaming("a", "b", buffer=2, concurrency=2)
    wanted = {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 2}
    second = world.create_run(name="other", training=wanted)
    world.settle()
    world.claim_and_submit("a", "b")
    world.settle()
    for run_id in (first, second):
        own = {u.id for u in world.updates() if u.run_id == run_id}
        assert {c.update_id for c in world.contributions(world.checkpoints(run_id)[1])} <= own


def test_stream_goes_on_when_those_at_work_leave() -> None:
    world, run_id = streaming(*"abcd", buffer=2, concurrency=2)
    for name in sorted({t.client_name for t in world.state.tasks.values() if t.status in OPEN_TASK})[:2]:
        world.send(m.RemoveClient(world.client(name)))
    for _ in range(4):
        world.claim_and_submit(*[c.name for c in world.state.clients.values() if c.status == "active"])
        world.settle()
    assert world.run(run_id).status == "running" and world.cohort(run_id).round >= 2


def test_stream_is_held_when_everybody_fails_and_goes_on_when_resumed() -> None:
    world, run_id = streaming("a", "b", buffer=2, concurrency=2)
    for name in ("a", "b"):
        give_up(world, world.claim(name)[0].task)
    world.settle()
    assert world.run(run_id).hold == "quorum"
    world.send(m.ResumeRun(run_id))
    world.claim_and_submit("a", "b")
    world.settle()
    assert world.cohort(run_id).round == 1


def test_last_round_ends_the_work_in_flight() -> None:
    world, run_id = streaming(*"abc", buffer=1, concurrency=3, rounds=1)
    world.claim("c")
    world.claim_and_submit("a")
    world.settle()
    assert world.run(run_id).status == "completed"
    assert world.task_of("c").status == "revoked"
