"""What breaks is set aside for longer and longer, and comes back."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.runtime.set_aside import LONGEST_PAUSE_S, SetAside, WorkItem
from services.core.errors import InvariantBroken

RUN, TASK = UUID(int=1), UUID(int=2)
ITEM = WorkItem("LeaseRanOut", TASK, RUN)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_pause_doubles_with_each_failure_up_to_a_bound() -> None:
    clock = Clock()
    set_aside, pauses = SetAside(clock), list[float]()
    for _ in range(12):
        set_aside.put(ITEM, KeyError())
        began = clock.now
        while not set_aside.is_due(ITEM):
            clock.now += 0.5
        pauses.append(clock.now - began)
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_several_that_meet_the_same_fault_at_once_count_as_one() -> None:
    clock = Clock()
    set_aside = SetAside(clock)
    for _ in range(20):
        set_aside.put(ITEM, KeyError())
    clock.now = 1.0
    assert set_aside.is_due(ITEM)


def test_what_nobody_tries_any_more_is_forgotten() -> None:
    clock = Clock()
    set_aside = SetAside(clock)
    set_aside.put(ITEM, KeyError())
    clock.now = 2 * LONGEST_PAUSE_S
    assert set_aside.why(RUN) is None and not set_aside.counts()


def test_what_succeeds_comes_back_and_begins_anew() -> None:
    set_aside = SetAside(Clock())
    set_aside.put(ITEM, KeyError())
    set_aside.clear(ITEM)
    assert set_aside.is_due(ITEM) and set_aside.why(RUN) is None and not set_aside.counts()
    assert set_aside.totals == {"LeaseRanOut": 1}


def test_what_is_no_longer_due_is_forgotten() -> None:
    set_aside = SetAside(Clock())
    set_aside.put(ITEM, KeyError())
    set_aside.put(other := WorkItem("claim", RUN, RUN), KeyError())
    set_aside.keep_only(["LeaseRanOut"], [])
    assert set_aside.counts() == {other.kind: 1}


def test_a_user_reads_our_words_but_nothing_of_a_bug() -> None:
    set_aside = SetAside(Clock())
    set_aside.put(ITEM, InvariantBroken("the model is not stored"))
    assert "the model is not stored" in (set_aside.why(RUN) or "")
    set_aside.put(ITEM, KeyError("a secret"))
    assert "secret" not in (set_aside.why(RUN) or "")


def test_an_experiment_ends_with_what_breaks() -> None:
    with pytest.raises(KeyError):
        SetAside(is_strict=True).put(ITEM, KeyError())
