"""The fence: nothing handed out before it counts after it, and the head holds nothing of the client."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.engine import messages as m
from services.core.errors import Rejected
from tests.support.world import World, with_run

ONE_AT_A_TIME = {"algorithm": "fedavg", "clients_per_round": 1}


def trained_in_turns(num_rounds: int) -> tuple[World, UUID]:
    """Rounds of one client each, in turns: b in 1, c in 2, a in 3, then b again."""
    names = ("a", "b", "c")
    world, run_id = with_run(*names, training=ONE_AT_A_TIME, selection="round_robin")
    for _ in range(num_rounds):
        world.claim_and_submit(*names)
        world.settle()
    return world, run_id


def test_fence_raises_the_epoch_and_revokes_open_work() -> None:
    world, run_id = with_run("a", "b")
    (granted,) = world.claim("a")
    world.fence("b")
    assert world.cohort(run_id).epoch == 1
    assert world.state.tasks[granted.task.id].status == "revoked"


def test_update_from_a_fenced_epoch_is_rejected() -> None:
    world, _ = with_run("a", "b")
    (granted,) = world.claim("a")
    world.fence("b")
    with pytest.raises(Rejected, match="epoch-fenced"):
        world.submit(granted.task)
    assert world.updates() == []


def test_update_that_was_accepted_before_the_fence_is_discarded() -> None:
    world, run_id = with_run("a", "b", training={"algorithm": "fedbuff", "buffer_size": 2})
    world.claim_and_submit("a")
    world.fence("b")
    assert [u.status for u in world.updates()] == ["discarded"]
    assert world.cohort(run_id).num_buffered == 0


def test_kernel_result_from_a_fenced_epoch_is_dropped() -> None:
    world, run_id = with_run("a", "b")
    world.claim_and_submit("a", "b")
    job = world.lease_job("kernel")
    assert job is not None
    world.fence("b")
    before = world.cohort(run_id)
    assert world.send(world.outcome_of(job)) is False
    assert world.cohort(run_id) == before


def test_head_moves_to_the_newest_model_without_the_client() -> None:
    world, run_id = trained_in_turns(4)
    world.fence("a")
    assert world.cohort(run_id).round == 2
    head = world.state.checkpoints[world.cohort(run_id).head_id or UUID(int=0)]
    assert world.clients_in(head) == world.provenance[head.digest] == {"b", "c"}


def test_head_moves_before_the_first_contribution_of_the_client_not_the_last() -> None:
    world, run_id = trained_in_turns(4)
    world.fence("b")
    assert world.cohort(run_id).round == 0


def test_head_stays_when_the_client_never_contributed() -> None:
    world, run_id = trained_in_turns(2)
    head = world.cohort(run_id).head_id
    world.fence("a")
    assert world.cohort(run_id).head_id == head


def test_fenced_client_is_not_asked_again() -> None:
    world, _ = with_run("a", "b")
    world.fence("b")
    world.settle()
    with pytest.raises(Rejected, match="client-erased"):
        world.claim("b")
    assert len(world.claim("a")) == 1


def test_line_is_trained_again_from_the_clean_model_in_the_new_epoch() -> None:
    world, run_id = trained_in_turns(4)
    world.fence("a")
    for _ in range(8):
        world.claim_and_submit("b", "c")
        world.settle()
    assert world.run(run_id).status == "completed"
    served = world.state.checkpoints[world.cohort(run_id).head_id or UUID(int=0)]
    assert [c.epoch for c in world.lineage(served)] == [1] * 8 + [0] * 3
    assert "a" not in world.provenance[served.digest]


def test_line_without_a_client_equals_one_that_never_had_it() -> None:
    world, run_id = with_run("a", "b", "c", stop={"rounds": 2})
    world.claim_and_submit("a", "b", "c")
    world.settle()
    world.fence("c")
    never, other = with_run("a", "b", stop={"rounds": 2})
    for one in (world, never):
        for _ in range(2):
            one.claim_and_submit("a", "b")
            one.settle()
    assert world.cohort(run_id).head_digest == never.cohort(other).head_digest


def test_fence_while_the_model_is_initialised_starts_anew() -> None:
    world = World()
    world.enrol("a", "b")
    run_id = world.create_run()
    old = world.lease_job("kernel")
    assert old is not None
    world.fence("b")
    assert world.send(world.outcome_of(old)) is False
    world.settle()
    assert world.cohort(run_id).phase == "asking"


def test_fence_of_a_completed_run_opens_it_again() -> None:
    world, run_id = with_run("a", "b", stop={"rounds": 1})
    world.claim_and_submit("a", "b")
    world.settle()
    world.fence("a")
    assert world.cohort(run_id).round == 0 and world.run(run_id).status == "running"
    world.claim_and_submit("b")
    world.settle()
    assert world.run(run_id).status == "completed" and world.cohort(run_id).round == 1


def test_fence_of_a_cancelled_run_moves_its_head_and_opens_no_work() -> None:
    world, run_id = with_run("a", "b")
    world.claim_and_submit("a", "b")
    world.settle()
    world.send(m.CancelRun(run_id, "not needed"))
    world.fence("a")
    assert world.cohort(run_id).round == 0 and world.cohort(run_id).awaiting is None
    assert world.run(run_id).status == "cancelled" and world.claim("b") == ()


def test_a_fence_waits_until_what_it_takes_out_of_use_is_noted() -> None:
    world, run_id = with_run("a", "b")
    world.claim_and_submit("a", "b")
    world.settle()
    erasure_id = world.file("a")
    (job,) = [job for job in world.state.jobs.values() if job.kind == "fence"]
    tainted = {c.digest for c in world.checkpoints(run_id) if c.kind == "aggregate"}
    early = m.FenceErasure(erasure_id, job.id, frozenset())
    assert world.send(early).awaits_fence and world.state.jobs[job.id].status == "ready"
    assert repr(early) == repr(m.FenceErasure(erasure_id, job.id))  # simulations name what it makes by that
    assert tainted and world.send(m.FenceErasure(erasure_id, job.id, frozenset(tainted))).status == "fenced"
    assert world.state.jobs[job.id].status == "done"
