"""From the fence to the certificate: what a request waits for, what holds it up, and how it goes on."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import AffectedCohort
from tests.support.world import World, with_run
from tests.unit.engine.test_erasures import go_on, trained

LEASE_S = 60.0
CLUSTERS = {"kind": "clusters", "num_clusters": 2, "assignment": "random"}
TREE = {"kind": "tree", "shape": "balanced"}


def line_of(world: World, erasure_id: UUID, run_id: UUID, name: str | None = None) -> AffectedCohort:
    return world.state.affected_cohorts[erasure_id, world.cohort(run_id, name).id]


def test_paused_run_holds_its_request_up_and_says_why() -> None:
    world, run_id = trained("a", "b", "c")
    world.send(m.PauseRun(run_id, "operator", "maintenance"))
    erasure_id = world.fence("a")
    world.settle()
    erasure = world.erasure(erasure_id)
    assert (erasure.status, erasure.reason) == ("requires_action", "run digits is paused: maintenance")
    world.send(m.ResumeRun(run_id))
    world.settle()
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed"


def test_cancelling_the_run_ends_what_the_request_waits_for() -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = world.fence("a")
    world.settle()
    world.send(m.CancelRun(run_id, "not needed"))
    world.settle()
    assert world.erasure(erasure_id).status == "completed"


@pytest.mark.parametrize("kernel_fails_before_the_first_model", [False, True])
def test_failed_run_settles_its_lines_and_serves_nothing_tainted(kernel_fails_before_the_first_model: bool) -> None:
    world, run_id = trained("a", "b", "c")
    erasure_id = world.fence("a")
    world.settle()
    if not kernel_fails_before_the_first_model:
        go_on(world, 1)
    world.claim_and_submit("b", "c")
    job = world.lease_job("kernel")
    assert job is not None
    world.send(m.JobFailed(job.id, job.lease_token or "", "no memory", retryable=False))
    assert world.cohort(run_id).phase == "failed"
    world.review()
    assert world.erasure(erasure_id).status == "executing"
    world.settle()
    assert world.run(run_id).status == "failed"
    assert world.erasure(erasure_id).status == "completed"
    assert "a" not in world.provenance[world.cohort(run_id).head_digest or ""]


def test_lines_of_a_cancelled_tree_roll_back_instead_of_waiting_for_a_merge() -> None:
    world, run_id = with_run("a", "b", "c", "d", topology=TREE, stop={"rounds": 4})
    go_on(world, 2)
    world.send(m.CancelRun(run_id, "not needed"))
    erasure_id = world.fence("a")
    world.settle()
    assert world.erasure(erasure_id).status == "completed"
    assert line_of(world, erasure_id, run_id, "root").action == "rolled-back"
    assert world.cohort(run_id, "root").round == 0 and world.cohort(run_id, "root").head_id is not None


def test_clients_that_stay_away_hold_a_request_up_until_they_return() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = world.fence("a")
    world.settle()
    world.claim_and_submit("b")
    world.advance(LEASE_S - 1)
    world.tick()
    assert world.erasure(erasure_id).status == "executing"
    world.advance(2)
    world.tick()
    erasure = world.erasure(erasure_id)
    assert erasure.status == "requires_action"
    assert "round 1 of cohort all in run digits has 1 of 2 answers" in (erasure.reason or "")
    assert "(c)" in (erasure.reason or "")
    (granted,) = world.claim("c")
    world.tick()
    assert (world.erasure(erasure_id).status, world.erasure(erasure_id).reason) == ("executing", None)
    world.submit(granted.task)
    world.settle()
    go_on(world, 2)
    assert world.erasure(erasure_id).status == "completed"


def test_client_that_falls_silent_holds_a_request_up() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = world.fence("a")
    world.settle()
    world.claim_and_submit("b")
    world.claim("c")
    world.advance(LEASE_S + 1)
    world.tick()
    assert world.erasure(erasure_id).status == "requires_action"
    world.send(m.OpenSession(world.client("c"), "1.0"))
    world.claim("c")
    world.tick()
    assert world.erasure(erasure_id).status == "executing"


def test_agent_that_starts_anew_holds_nothing_up() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = world.fence("a")
    world.settle()
    world.claim_and_submit("b")
    (granted,) = world.claim("c")
    for _ in range(3):
        world.advance(LEASE_S - 1)
        world.send(m.RenewLease(granted.task.id, world.client("c"), granted.task.lease_token or "", 0.5))
    world.send(m.OpenSession(world.client("c"), "1.0"))
    world.tick()
    assert world.erasure(erasure_id).status == "executing"


@pytest.mark.parametrize(
    "training",
    [
        {"algorithm": "fedavg", "quorum": 2, "deadline_s": 10.0},
        {"algorithm": "fedbuff", "buffer_size": 2, "concurrency": 3},
    ],
    ids=lambda training: training["algorithm"],
)
def test_too_few_answers_hold_a_request_up(training: dict[str, Any]) -> None:
    """A deadline passed without a quorum; a buffer that does not fill."""
    world, _ = with_run("a", "b", "c", "d", training=training, stop={"rounds": 4})
    go_on(world, 2)
    erasure_id = world.fence("a")
    world.settle()
    world.claim_and_submit("b")
    world.advance(LEASE_S + 1)
    world.tick()
    assert world.erasure(erasure_id).status == "requires_action"
    world.claim_and_submit("c")
    world.settle()
    assert world.erasure(erasure_id).status == "executing"


def test_missing_client_of_the_group_holds_a_request_up() -> None:
    world, _ = with_run("a", "b", "c", "d", topology=TREE, stop={"rounds": 4})
    go_on(world, 2)
    erasure_id = world.fence("a", recovery_rounds=1)
    world.settle()
    world.claim_and_submit("b", "c")
    world.settle()
    world.advance(LEASE_S + 1)
    world.tick()
    assert world.erasure(erasure_id).status == "requires_action"
    assert "(d" in (world.erasure(erasure_id).reason or "")


def test_request_does_not_wait_for_the_merges_of_a_run_that_goes_on() -> None:
    """Heads move with every round; the merged model is made once for each line that has recovered."""
    world, run_id = with_run("a", "b", "c", "d", topology=CLUSTERS, stop={"rounds": 40})
    go_on(world, 2)
    members = {c.name: [x.name for x in world.state.members.values() if x.cohort_id == c.id and x.active] for c in
               world.cohorts(run_id).values()}  # fmt: skip
    (own,) = [name for name, names in members.items() if "a" in names]
    other = [name for names in members.values() for name in names if name not in members[own]]
    erasure_id = world.fence("a")
    for _ in range(4):
        rest = [name for name in members[own] if name != "a"]
        world.claim_and_submit(*rest, *other)
        world.run_kernels()
        world.review()
        world.claim_and_submit(*other)  # the other cluster is faster: a head moves while the merge is made
        world.run_kernels()
        world.review()
    world.run_chores()
    assert world.erasure(erasure_id).status == "completed"
    assert world.run(run_id).status == "running"


def test_line_is_planned_again_when_another_erasure_cuts_deeper() -> None:
    one_in_turn = {"training": {"algorithm": "fedavg", "clients_per_round": 1}, "selection": "round_robin"}
    world, run_id = with_run("a", "b", "c", "d", **one_in_turn, stop={"rounds": 8})
    go_on(world, 4)
    models = {c.round: world.clients_in(c) for c in world.checkpoints(run_id)}
    last, before = [next(iter(models[n] - models[n - 1])) for n in (4, 3)]
    first = world.fence(last)
    kept = line_of(world, first, run_id)
    assert kept.rollback_digest == next(c.digest for c in world.checkpoints(run_id) if c.round == 3)
    second = world.fence(before)
    for erasure_id, round_at_fence, epoch_before in ((first, 4, 0), (second, 3, 1)):
        line = line_of(world, erasure_id, run_id)
        assert line.rollback_digest == next(c.digest for c in world.checkpoints(run_id) if c.round == 2)
        assert (line.epoch_before, line.epoch_after, line.round_at_fence) == (epoch_before, 2, round_at_fence)
        assert line.target_round == round_at_fence and line.done_at is None
    world.settle()
    go_on(world, 1)
    assert [world.erasure(one).status for one in (first, second)] == ["executing", "completed"]
    go_on(world, 1)
    assert world.erasure(first).status == "completed"


def test_line_that_was_done_is_open_again_after_another_cut() -> None:
    world, run_id = with_run("a", "b", "c", "d", stop={"rounds": 8})
    go_on(world, 2)
    first = world.fence("a")
    world.settle()
    for _ in range(2):
        world.claim_and_submit("b", "c", "d")
        world.run_kernels()
        world.review()
    assert world.erasure(first).status == "verifying"
    purge = next(j for j in world.state.jobs.values() if j.kind == "purge")
    version = world.erasure(first).version
    second = world.fence("b")
    assert world.erasure(first).status == "executing"
    assert line_of(world, first, run_id).done_at is None
    world.send(m.CompleteErasure(first, purge.id, version, "signed too early"))
    assert world.erasure(first).status == "executing"
    go_on(world, 2)
    assert [world.erasure(one).status for one in (first, second)] == ["completed", "completed"]
    assert {c.envelope for c in world.state.certificates.values()} == {"signed"}


def test_line_of_a_cohort_that_another_erasure_retires_is_done() -> None:
    world, run_id = with_run("a", "b", "c", "d", topology=TREE, stop={"rounds": 4})
    go_on(world, 2)
    first = world.fence("a")
    second = world.fence("b")
    lines = [one for one in world.state.affected_cohorts.values() if one.erasure_id == first]
    retired = [one for one in lines if world.state.cohorts[one.cohort_id].phase == "retired"]
    assert len(retired) > 1 and all(one.action == "retired" and one.done_at is not None for one in retired)
    (root,) = [one for one in lines if one.cohort_name == "root"]
    assert root.sources == line_of(world, second, run_id, "root").sources
    world.settle()
    go_on(world, 6)
    assert [world.erasure(one).status for one in (first, second)] == ["completed", "completed"]


def test_a_certificate_about_an_older_state_of_the_request_does_not_complete_it() -> None:
    world, _ = trained("a", "b", "c")
    erasure_id = world.fence("a")
    while world.erasure(erasure_id).status != "verifying":
        world.claim_and_submit("b", "c")
        world.run_kernels()
        world.run_chores("post")
        world.review()
    (purge,) = (j for j in world.state.jobs.values() if j.kind == "purge")
    now = world.erasure(erasure_id).version
    world.send(m.CompleteErasure(erasure_id, purge.id, now - 1, "signed before it moved on"))
    assert world.erasure(erasure_id).status == "verifying"
    world.send(m.CompleteErasure(erasure_id, purge.id, now, "signed"))
    assert world.erasure(erasure_id).status == "completed"
