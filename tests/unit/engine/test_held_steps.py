"""A step of an erasure that broke outside the database: the request says so, and goes on from there."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.engine import messages as m
from tests.support.world import World, with_run

REASON = "its fence failed: there is no room"


def held(*names: str) -> tuple[World, UUID]:
    """A request whose tombstone could not be written."""
    world, _ = with_run(*names, stop={"rounds": 2})
    erasure_id = world.file(names[0])
    world.send(m.HoldErasure(erasure_id, None, world.erasure(erasure_id).version, REASON))
    return world, erasure_id


def test_a_fence_that_failed_is_said_and_nothing_is_taken_for_fenced() -> None:
    world, erasure_id = held("a", "b")
    world.review()
    erasure = world.erasure(erasure_id)
    assert (erasure.status, erasure.reason, erasure.fenced_at) == ("requires_action", REASON, None)
    assert all(client.status == "active" for client in world.state.clients.values())


def test_the_same_failure_again_is_no_news() -> None:
    world, erasure_id = held("a", "b")
    version = world.erasure(erasure_id).version
    world.send(m.HoldErasure(erasure_id, None, version, REASON))
    assert world.erasure(erasure_id).version == version


def test_a_fence_that_failed_is_carried_out_by_its_next_attempt() -> None:
    world, erasure_id = held("a", "b")
    world.run_chores("fence")
    assert world.erasure(erasure_id).status == "fenced"
    assert world.erasure(erasure_id).reason is None


def test_a_retry_of_a_fence_that_failed_does_not_skip_the_fence() -> None:
    world, erasure_id = held("a", "b")
    world.send(m.RetryErasure(erasure_id))
    assert world.erasure(erasure_id).status == "received"
    world.run_chores("fence")
    assert world.erasure(erasure_id).fenced_at is not None


@pytest.mark.parametrize("is_held_by_its_job", [True, False])
def test_a_purge_that_failed_completes_by_its_own_next_attempt_alone(is_held_by_its_job: bool) -> None:
    world = World()
    world.enrol("a")
    erasure_id = world.fence("a")
    world.review()
    job = world.lease_job("purge")
    assert job is not None
    world.send(m.HoldErasure(erasure_id, None, world.erasure(erasure_id).version, "its purge failed"))
    version = world.erasure(erasure_id).version
    job_id = job.id if is_held_by_its_job else UUID(int=7)
    world.send(m.CompleteErasure(erasure_id, job_id, version, "signed"))
    assert world.erasure(erasure_id).status == ("completed" if is_held_by_its_job else "requires_action")
