"""Time and chance of an experiment: whole microseconds, bells that are looked up, ids that are named."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from coordinator.engine.messages import ClaimTasks, JobDone
from lethe.simulation.clock import BEGINNING, NamedEntropy, RecordingBus, VirtualClock, virtual_s, whole

CLAIM = ClaimTasks(UUID(int=1))
DONE = JobDone(UUID(int=2), lease_token="drawn from the machine")


def test_an_instant_is_the_same_number_of_seconds_after_a_trip_through_a_row() -> None:
    clock = VirtualClock()
    for drawn in (0.1, 1 / 3, 12345.678901234, 9e8 + 1e-6):
        clock.move_to(whole(drawn))
        assert virtual_s(clock()) == whole(drawn)


def test_the_clock_never_goes_back() -> None:
    clock = VirtualClock()
    clock.move_to(5.0)
    clock.move_to(3.0)
    assert (clock() - BEGINNING).total_seconds() == 5.0


def test_a_message_that_comes_again_gets_other_ids_and_the_same_ones_in_another_life() -> None:
    one, other = NamedEntropy(1, VirtualClock()), NamedEntropy(1, VirtualClock())
    first, second = one(CLAIM), one(CLAIM)
    assert first != second
    assert [other(CLAIM), other(CLAIM)] == [first, second]
    other.clock.move_to(1.0)
    assert other(CLAIM) not in (first, second)
    assert NamedEntropy(2, VirtualClock())(CLAIM) != first


def test_tokens_that_the_machine_drew_do_not_matter_for_ids() -> None:
    one, other = NamedEntropy(1, VirtualClock()), NamedEntropy(1, VirtualClock())
    assert one(DONE) == other(replace(DONE, lease_token="another"))


def test_bells_remember_who_was_rung_for_until_somebody_looks() -> None:
    bells = RecordingBus()
    bells.wake(["clock", "client:1"])
    bells.wake(["client:1", "client:2"])
    assert bells.take() == {"clock", "client:1", "client:2"}
    assert bells.take() == set()


def test_bells_say_whether_anybody_was_rung_for() -> None:
    bells = RecordingBus()
    before = bells.has_rung
    bells.wake(["clock"])
    assert (before, bells.has_rung) == (False, True)
