"""Kernel jobs: leases, lost leases, failures, a full store."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from coordinator.engine import messages as m
from coordinator.engine.entities import Job
from tests.support.world import JOB_LEASE_S, World, with_run


def with_kernel() -> tuple[World, UUID, Job]:
    """A world whose round is complete and whose aggregation is leased."""
    world, run_id = with_run("a", "b")
    world.claim_and_submit("a", "b")
    job = world.lease_job("kernel")
    assert job is not None and job.kernel == "weighted_step"
    return world, run_id, job


def failure(job: Job, retryable: bool = True, storage_full: bool = False) -> m.JobFailed:
    return m.JobFailed(job.id, job.lease_token or "", "no memory", retryable, storage_full)


def lease_again(world: World) -> Job:
    world.advance(JOB_LEASE_S)
    job = world.lease_job("kernel")
    assert job is not None
    return job


def test_result_of_a_kernel_is_published() -> None:
    world, run_id, job = with_kernel()
    assert world.send(world.outcome_of(job)) is True
    assert world.cohort(run_id).round == 1


def test_result_delivered_twice_is_counted_once() -> None:
    world, _, job = with_kernel()
    world.send(world.outcome_of(job))
    before = world.state
    assert world.send(world.outcome_of(job)) is False
    assert replace(world.state, blobs=before.blobs) == before


def test_silent_holder_loses_the_job_and_its_late_result_is_dropped() -> None:
    world, run_id, first = with_kernel()
    second = lease_again(world)
    assert second.id == first.id
    assert world.send(world.outcome_of(first)) is False
    assert world.cohort(run_id).round == 0
    assert world.send(world.outcome_of(second)) is True


def test_kernel_run_twice_makes_the_same_model() -> None:
    world, _, first = with_kernel()
    second = lease_again(world)
    one, other = world.outcome_of(first).blob, world.outcome_of(second).blob
    assert one is not None and other is not None
    assert one.digest == other.digest and one.blob_id != other.blob_id


def test_failed_kernel_is_tried_again_after_a_pause() -> None:
    world, _, job = with_kernel()
    world.send(failure(job))
    assert world.lease_job("kernel") is None
    world.advance(1)
    again = world.lease_job("kernel")
    assert again is not None and again.attempt == 2


def test_run_fails_when_a_kernel_keeps_failing() -> None:
    world, run_id, job = with_kernel()
    world.send(failure(job))
    world.send(failure(lease_again(world)))
    world.send(failure(lease_again(world)))
    world.settle()
    assert world.run(run_id).status == "failed"
    assert world.run(run_id).reason == "kernel weighted_step failed: no memory"


def test_run_fails_at_once_when_a_kernel_cannot_work_with_its_inputs() -> None:
    world, run_id, job = with_kernel()
    world.send(failure(job, retryable=False))
    world.settle()
    assert world.run(run_id).status == "failed"


def test_full_store_holds_the_run_until_it_is_resumed() -> None:
    world, run_id, job = with_kernel()
    world.send(failure(job, storage_full=True))
    world.run_chores()
    run = world.run(run_id)
    assert (run.status, run.hold) == ("paused", "storage-full")
    world.send(m.ResumeRun(run_id))
    assert world.send(world.outcome_of(lease_again(world))) is True


def test_full_store_is_no_failure_of_the_kernel() -> None:
    world, run_id, job = with_kernel()
    for _ in range(5):
        world.send(failure(job, storage_full=True))
        world.run_chores()
        world.send(m.ResumeRun(run_id))
        job = lease_again(world)
    world.send(failure(job))
    world.settle()
    assert world.run(run_id).status == "running"
