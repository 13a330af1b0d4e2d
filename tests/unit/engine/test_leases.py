"""Claims, leases, heartbeats and failures."""

from __future__ import annotations

from datetime import timedelta

import pytest

from coordinator.engine import messages as m
from coordinator.engine.react import client_key
from services.core.errors import Rejected
from tests.support.world import World, with_run


def heartbeat(world: World, name: str, token: str) -> m.RenewLease:
    return m.RenewLease(world.task_of(name).id, world.client(name), token, 0.5)


def failure(world: World, name: str, retryable: bool = True) -> m.FailTask:
    task = world.task_of(name)
    return m.FailTask(task.id, task.client_id, task.lease_token or "", retryable, "out of memory", "last line")


def lapse(world: World) -> None:
    world.advance(61)
    world.tick()


def test_new_task_wakes_its_client() -> None:
    world, _ = with_run("a", "b")
    assert {client_key(world.client("a")), client_key(world.client("b"))} <= world.wakes


def test_claim_leases_the_task_with_a_token_until_the_lease_ends() -> None:
    world, _ = with_run("a", "b", lease_s=60.0)
    (granted,) = world.claim("a")
    assert granted.task.status == "leased" and granted.task.lease_token
    assert granted.task.due_at == world.now + timedelta(seconds=60)
    assert granted.task.attempt == 1 and granted.weights_bytes == 100


def test_leased_task_is_not_handed_out_twice() -> None:
    world, _ = with_run("a")
    assert world.claim("a")
    assert world.claim("a") == ()


def test_lease_that_ran_out_is_offered_to_the_same_client_under_a_new_token() -> None:
    world, _ = with_run("a", "b")
    (first,) = world.claim("a")
    lapse(world)
    (second,) = world.claim("a")
    assert second.task.id == first.task.id and second.task.attempt == 2
    assert second.task.lease_token != first.task.lease_token


def test_lease_does_not_run_out_before_its_time() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    world.send(m.LeaseRanOut(granted.task.id, granted.task.lease_token or ""))
    assert world.task_of("a").status == "leased"


def test_late_result_is_forgiven_while_nobody_claimed_the_task_again() -> None:
    world, _ = with_run("a", "b")
    (granted,) = world.claim("a")
    lapse(world)
    world.submit(granted.task)
    assert world.task_of("a").status == "done"


def test_old_token_is_refused_after_another_claim() -> None:
    world, _ = with_run("a", "b")
    (old,) = world.claim("a")
    lapse(world)
    world.claim("a")
    with pytest.raises(Rejected, match="lease-lost"):
        world.submit(old.task)
    with pytest.raises(Rejected, match="lease-lost"):
        world.send(heartbeat(world, "a", old.task.lease_token or ""))


def test_heartbeat_renews_the_lease() -> None:
    world, _ = with_run("a", lease_s=60.0)
    (granted,) = world.claim("a")
    world.advance(50)
    renewed = world.send(heartbeat(world, "a", granted.task.lease_token or ""))
    assert renewed.until == world.now + timedelta(seconds=60)
    world.advance(50)
    world.tick()
    assert world.task_of("a").status == "leased" and world.task_of("a").progress == 0.5


def test_heartbeat_takes_a_lapsed_lease_up_again() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    lapse(world)
    world.send(heartbeat(world, "a", granted.task.lease_token or ""))
    assert world.task_of("a").status == "leased"


def test_restarted_agent_gets_its_task_again_at_once() -> None:
    world, _ = with_run("a")
    (first,) = world.claim("a")
    world.send(m.OpenSession(world.client("a"), "1.0"))
    (second,) = world.claim("a")
    assert second.task.id == first.task.id


def test_failed_attempt_is_retried_after_a_growing_pause() -> None:
    world, _ = with_run("a")
    pauses = []
    for _ in range(3):
        world.advance(120)
        world.claim("a")
        assert world.send(failure(world, "a")).will_retry
        task = world.task_of("a")
        assert world.claim("a") == () and task.due_at is not None
        pauses.append((task.due_at - world.now).total_seconds())
    assert pauses == [1, 2, 4]


def test_token_of_a_failed_attempt_is_void() -> None:
    world, _ = with_run("a")
    (granted,) = world.claim("a")
    world.send(failure(world, "a"))
    with pytest.raises(Rejected, match="lease-lost"):
        world.submit(granted.task)


def test_task_counts_as_failed_after_max_attempts() -> None:
    world, run_id = with_run("a", "b", max_attempts=2)
    world.claim("a")
    world.send(failure(world, "a"))
    world.advance(10)
    world.claim("a")
    assert not world.send(failure(world, "a")).will_retry
    task = world.task_of("a")
    assert (task.status, task.failure, task.log_tail) == ("failed", "out of memory", "last line")
    assert world.awaited_round(run_id).num_failed == 1


def test_failure_that_cannot_be_retried_is_final() -> None:
    world, _ = with_run("a", "b")
    world.claim("a")
    assert not world.send(failure(world, "a", retryable=False)).will_retry
    assert world.task_of("a").status == "failed"


@pytest.mark.parametrize("is_renewed", [False, True])
def test_a_lease_of_a_clock_that_was_ahead_ends_when_the_clock_is_set_back(is_renewed: bool) -> None:
    world, _ = with_run("a", lease_s=60.0)
    world.advance(0 if is_renewed else 86400)
    (granted,) = world.claim("a")
    if is_renewed:
        world.advance(86400)
        world.send(heartbeat(world, "a", granted.task.lease_token or ""))
    world.advance(-86000)
    world.send(m.LeaseRanOut(granted.task.id, granted.task.lease_token or ""))
    assert world.task_of("a").status == "ready"
    world.submit(granted.task)
    (update,) = world.updates("consumed") or world.updates("buffered")
    assert update.seconds >= 0


def test_a_pause_of_a_clock_that_was_ahead_ends_when_the_clock_is_set_back() -> None:
    world, _ = with_run("a")
    world.advance(86400)
    world.claim("a")
    world.send(failure(world, "a"))
    assert world.claim("a") == ()
    world.advance(-86400)
    assert len(world.claim("a")) == 1
