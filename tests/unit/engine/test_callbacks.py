"""Deliveries to callbacks: one for each change and callback, numbered, with a bounded number of attempts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from coordinator.engine import messages as m
from coordinator.engine.entities import Delivery, Job
from coordinator.engine.erasure.callbacks import PAUSES_S
from tests.support.world import World

CALLBACKS: tuple[dict[str, Any], ...] = ({"url": "https://a.example/x", "secret": None},) * 2


def filed(**changes: Any) -> World:
    world = World()
    world.enrol("a", "b")
    world.file("a", callbacks=CALLBACKS, **changes)
    return world


def attempt(world: World, error: str | None, **changes: Any) -> tuple[Delivery, Job]:
    """Lease the oldest delivery that is due, and say what became of it."""
    job = world.lease_job("notify")
    assert job is not None
    (delivery,) = [d for d in world.state.deliveries.values() if str(d.id) == job.params["delivery_id"]]
    world.send(m.SettleDelivery(delivery.id, job.id, error, **changes))
    return world.state.deliveries[delivery.id], world.state.jobs[job.id]


def test_each_change_goes_to_each_callback_under_its_number() -> None:
    world = filed()
    world.settle()
    changes = sorted((d.seq, d.callback, d.type.removeprefix("erasure.")) for d in world.state.deliveries.values())
    statuses = ("received", "fenced", "executing", "first_clean", "verifying", "completed")
    assert changes == [(seq, index, s) for seq, s in enumerate(statuses, 1) for index in (0, 1)]


def test_a_request_without_callbacks_announces_nothing() -> None:
    world = World()
    world.enrol("a", "b")
    world.fence("a")
    world.settle()
    assert not world.state.deliveries


def test_what_is_delivered_is_not_tried_again() -> None:
    world = filed(needs_approval=True)
    delivery, job = attempt(world, None)
    assert (delivery.status, delivery.attempts, delivery.delivered_at) == ("delivered", 1, world.now)
    assert (job.status, delivery.next_attempt_at) == ("done", None)
    world.send(m.SettleDelivery(delivery.id, job.id, "a second process was slower"))
    assert world.state.deliveries[delivery.id] == delivery


def test_attempts_pause_longer_each_time_and_end() -> None:
    world = filed(needs_approval=True)
    attempt(world, None)
    for number, pause in enumerate(PAUSES_S, start=1):
        delivery, job = attempt(world, "answered 500")
        assert (delivery.status, delivery.attempts, job.status) == ("pending", number, "ready")
        assert delivery.next_attempt_at == job.due_at == world.now + timedelta(seconds=pause)
        assert world.lease_job("notify") is None
        world.advance(pause)
    delivery, job = attempt(world, "answered 500")
    assert (delivery.status, delivery.error, delivery.next_attempt_at) == ("failed", "answered 500", None)
    assert job.status == "done"


def test_a_receiver_that_is_gone_is_left_alone() -> None:
    world = filed(needs_approval=True)
    delivery, _ = attempt(world, "answered 410", is_final=True)
    assert (delivery.status, delivery.attempts) == ("failed", 1)
