"""Creating, pausing, resuming and cancelling runs; clients that leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine import messages as m
from coordinator.engine.entities import OPEN_TASK
from services.core.digests import of_json
from services.core.errors import Rejected
from tests.support.world import FEDERATION, World, spec, with_run


def pause(run_id: UUID) -> m.PauseRun:
    return m.PauseRun(run_id, "operator", "maintenance")


def asked(world: World) -> set[str]:
    return {t.client_name for t in world.state.tasks.values() if t.status in OPEN_TASK}


def test_run_takes_the_clients_of_its_own_federation_only() -> None:
    world = World()
    world.enrol("a", "b", "stranger")
    stranger = world.state.clients[world.client("stranger")]
    world.state = world.state.put(replace(stranger, federation_id=UUID(int=2)))
    run_id = world.create_run()
    assert world.cohort(run_id).num_members == 2


def test_run_with_an_unknown_client_is_refused() -> None:
    world = World()
    world.enrol("a")
    with pytest.raises(Rejected, match="invalid-run"):
        world.create_run(clients=["a", "nobody"])


def test_run_with_a_quorum_above_its_clients_is_refused() -> None:
    world = World()
    world.enrol("a")
    with pytest.raises(Rejected, match="invalid-run"):
        world.create_run(training={"algorithm": "fedavg", "quorum": 2})


def test_run_from_weights_that_are_not_stored_is_refused() -> None:
    world = World()
    world.enrol("a")
    with pytest.raises(Rejected, match="invalid-run"):
        world.create_run(init=of_json("nowhere"))


def test_run_from_uploaded_weights_starts_with_them() -> None:
    world = World()
    world.enrol("a")
    weights = world.store_blob(of_json("weights"))
    run_id = world.create_run(init=weights)
    assert world.cohort(run_id).head_digest == weights == world.awaited_round(run_id).model_digest


def test_creating_the_same_run_again_changes_nothing() -> None:
    world, run_id = with_run("a")
    before = world.state
    assert world.send(m.CreateRun(run_id, FEDERATION, spec())).id == run_id
    assert world.state == before


def test_paused_run_hands_out_nothing() -> None:
    world, run_id = with_run("a")
    world.send(pause(run_id))
    assert world.claim("a") == ()
    world.send(m.ResumeRun(run_id))
    assert len(world.claim("a")) == 1


def test_paused_run_accepts_the_results_of_work_in_hand() -> None:
    world, run_id = with_run("a")
    (granted,) = world.claim("a")
    world.send(pause(run_id))
    world.submit(granted.task)
    assert world.cohort(run_id).phase == "computing"


def test_kernels_of_a_paused_run_wait() -> None:
    world, run_id = with_run("a")
    world.claim_and_submit("a")
    world.send(pause(run_id))
    assert world.run_kernels() == 0
    world.send(m.ResumeRun(run_id))
    assert world.run_kernels() == 1


def test_deadline_does_not_pass_while_a_run_is_paused() -> None:
    world, run_id = with_run("a", "b", training={"algorithm": "fedavg", "quorum": 1, "deadline_s": 5.0})
    world.claim_and_submit("a")
    world.send(pause(run_id))
    world.advance(60)
    world.tick()
    assert world.awaited_round(run_id).status == "open"
    world.send(m.ResumeRun(run_id))
    world.tick()
    assert world.cohort(run_id).phase == "computing"


def test_operators_pause_outlasts_a_hold_that_ends_by_itself() -> None:
    world, run_id = with_run("a")
    world.send(m.PauseRun(run_id, "storage-full", "the disk is full"))
    world.send(pause(run_id))
    assert world.run(run_id).hold == "operator"


def test_hold_does_not_replace_the_operators_pause() -> None:
    world, run_id = with_run("a")
    world.send(pause(run_id))
    world.send(m.PauseRun(run_id, "storage-full", "the disk is full"))
    assert world.run(run_id).hold == "operator"


def test_change_of_a_run_that_changed_since_it_was_read_is_refused() -> None:
    world, run_id = with_run("a")
    version = world.run(run_id).version
    world.send(pause(run_id))
    with pytest.raises(Rejected, match="precondition-failed"):
        world.send(m.ResumeRun(run_id, expected_version=version))


def test_cancelled_run_has_no_open_work_and_stays_cancelled() -> None:
    world, run_id = with_run("a", "b")
    (granted,) = world.claim("a")
    round_id = world.awaited_round(run_id).id
    world.send(m.CancelRun(run_id, "not needed"))
    assert world.run(run_id).status == "cancelled"
    assert asked(world) == set() and world.state.rounds[round_id].status == "abandoned"
    with pytest.raises(Rejected, match="round-closed"):
        world.submit(granted.task)
    with pytest.raises(Rejected, match="conflict"):
        world.send(m.ResumeRun(run_id))


def test_cancelling_drops_the_kernel_that_runs() -> None:
    world, run_id = with_run("a")
    world.claim_and_submit("a")
    job = world.lease_job("kernel")
    assert job is not None
    world.send(m.CancelRun(run_id, "not needed"))
    assert world.send(world.outcome_of(job)) is False
    assert world.cohort(run_id).round == 0


def test_removed_client_no_longer_counts_and_its_round_goes_on() -> None:
    world, run_id = with_run("a", "b", "c")
    world.claim_and_submit("a", "b")
    world.send(m.RemoveClient(world.client("c")))
    world.settle()
    assert world.cohort(run_id).round == 1 and world.cohort(run_id).num_members == 2
    assert asked(world) == {"a", "b"}


def test_removing_the_only_client_asked_asks_another_one() -> None:
    world, run_id = with_run("a", "b", "c", training={"algorithm": "fedavg", "clients_per_round": 1})
    (first,) = asked(world)
    world.send(m.RemoveClient(world.client(first)))
    (second,) = asked(world)
    assert second != first
    world.claim_and_submit(second)
    world.settle()
    assert world.cohort(run_id).round == 1


def test_removing_a_client_that_failed_frees_its_round() -> None:
    world, run_id = with_run("a", "b")
    world.claim_and_submit("a")
    (granted,) = world.claim("b")
    world.send(m.FailTask(granted.task.id, granted.task.client_id, granted.task.lease_token or "", False, "broken"))
    world.settle()
    world.send(m.RemoveClient(world.client("b")))
    world.send(m.ResumeRun(run_id))
    world.settle()
    assert world.cohort(run_id).round == 1


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbuff"])
def test_run_fails_with_a_reason_when_the_last_client_leaves(algorithm: str) -> None:
    world, run_id = with_run("a", "b", training={"algorithm": algorithm})
    for name in ("a", "b"):
        world.send(m.RemoveClient(world.client(name)))
    world.settle()
    assert world.run(run_id).status == "failed"
    assert world.run(run_id).reason == "cohort all has no clients left"


def test_removing_a_client_twice_changes_nothing() -> None:
    world, _ = with_run("a", "b")
    world.send(m.RemoveClient(world.client("a")))
    before = world.state
    world.send(m.RemoveClient(world.client("a")))
    assert world.state == before


def test_one_look_at_a_run_answers_all_cohorts_that_ended_together() -> None:
    names = ("a", "b", "c", "d")
    world, run_id = with_run(*names, topology={"kind": "tree", "shape": "balanced"}, stop={"rounds": 1})
    world.claim_and_submit(*names)
    world.run_kernels()
    asking = [j for j in world.state.jobs.values() if j.kind == "post" and j.status == "ready"]
    assert len(asking) == len(world.cohorts(run_id)) == 7
    world.send(m.SettleRun(run_id, asking[0].id))
    assert world.run(run_id).status == "completed"
    assert {world.state.jobs[j.id].status for j in asking} == {"done"}


def failed(*names: str, **changes: Any) -> tuple[World, UUID]:
    """A run that published round 1 and failed in round 2."""
    world, run_id = with_run(*names, stop={"rounds": 3}, **changes)
    for _ in range(2):
        world.claim_and_submit(*names)
        if world.cohort(run_id).round == 0:
            world.run_kernels()
    job = world.lease_job("kernel")
    assert job is not None
    world.send(m.JobFailed(job.id, job.lease_token or "", "no memory", retryable=False))
    world.settle()
    assert world.run(run_id).status == "failed"
    return world, run_id


@pytest.mark.parametrize("training", [{"algorithm": "fedavg"}, {"algorithm": "fedbuff", "buffer_size": 2}])
def test_a_failed_run_goes_on_from_the_model_that_it_serves(training: dict[str, Any]) -> None:
    world, run_id = failed("a", "b", training=training)
    served = world.cohort(run_id).head_digest
    world.send(m.ResumeRun(run_id))
    assert (world.run(run_id).status, world.run(run_id).ended_at) == ("running", None)
    assert world.awaited_round(run_id).model_digest == served
    for _ in range(2):
        world.claim_and_submit("a", "b")
        world.settle()
    assert (world.run(run_id).status, world.cohort(run_id).round) == ("completed", 3)


def test_what_was_done_before_a_run_failed_is_not_taken_after_it_was_resumed() -> None:
    world, run_id = failed("a", "b")
    old = [t for t in world.state.tasks.values() if t.round == 2]
    world.send(m.ResumeRun(run_id))
    with pytest.raises(Rejected, match="epoch-fenced"):
        world.send(m.RenewLease(old[0].id, old[0].client_id, old[0].lease_token or "", 0.5))


def test_a_failed_run_without_clients_cannot_be_resumed() -> None:
    world, run_id = with_run("a")
    world.send(m.RemoveClient(world.client("a")))
    world.settle()
    assert world.run(run_id).status == "failed"
    with pytest.raises(Rejected, match="no clients left"):
        world.send(m.ResumeRun(run_id))


@pytest.mark.parametrize(
    "topology", [{"kind": "clusters", "num_clusters": 2, "assignment": "random"}, {"kind": "tree"}]
)
def test_all_cohorts_of_a_failed_run_go_on(topology: dict[str, Any]) -> None:
    world, run_id = with_run("a", "b", "c", "d", topology=topology, stop={"rounds": 2})
    world.settle()
    world.claim_and_submit("a", "b", "c", "d")
    job = world.lease_job("kernel")
    assert job is not None
    world.send(m.JobFailed(job.id, job.lease_token or "", "no memory", retryable=False))
    world.settle()
    assert world.run(run_id).status == "failed"
    world.send(m.ResumeRun(run_id))
    for _ in range(4):
        world.settle()
        world.claim_and_submit("a", "b", "c", "d")
    world.settle()
    assert world.run(run_id).status == "completed", world.run(run_id).reason
