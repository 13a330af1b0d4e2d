"""What breaks is set aside for longer and longer, and comes back."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.runtime.quarantine import LONGEST_PAUSE_S, Quarantine, Thing
from services.core.errors import InvariantBroken

RUN, TASK = UUID(int=1), UUID(int=2)
THING = Thing("LeaseRanOut", TASK, RUN)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_pause_doubles_with_each_failure_up_to_a_bound() -> None:
    clock = Clock()
    quarantine, pauses = Quarantine(clock), list[float]()
    for _ in range(12):
        quarantine.put(THING, KeyError())
        began = clock.now
        while not quarantine.is_due(THING):
            clock.now += 0.5
        pauses.append(clock.now - began)
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_several_that_meet_the_same_fault_at_once_count_as_one() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    for _ in range(20):
        quarantine.put(THING, KeyError())
    clock.now = 1.0
    assert quarantine.is_due(THING)


def test_what_nobody_tries_any_more_is_forgotten() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.put(THING, KeyError())
    clock.now = 2 * LONGEST_PAUSE_S
    assert quarantine.why(RUN) is None and not quarantine.counts()


def test_what_succeeds_comes_back_and_begins_anew() -> None:
    quarantine = Quarantine(Clock())
    quarantine.put(THING, KeyError())
    quarantine.clear(THING)
    assert quarantine.is_due(THING) and quarantine.why(RUN) is None and not quarantine.counts()
    assert quarantine.totals == {"LeaseRanOut": 1}


def test_what_is_no_longer_due_is_forgotten() -> None:
    quarantine = Quarantine(Clock())
    quarantine.put(THING, KeyError())
    quarantine.put(other := Thing("claim", RUN, RUN), KeyError())
    quarantine.keep_only(["LeaseRanOut"], [])
    assert quarantine.counts() == {other.kind: 1}


def test_a_user_reads_our_words_but_nothing_of_a_bug() -> None:
    quarantine = Quarantine(Clock())
    quarantine.put(THING, InvariantBroken("the model is not stored"))
    assert "the model is not stored" in (quarantine.why(RUN) or "")
    quarantine.put(THING, KeyError("a secret"))
    assert "secret" not in (quarantine.why(RUN) or "")


def test_an_experiment_ends_with_what_breaks() -> None:
    with pytest.raises(KeyError):
        Quarantine(is_strict=True).put(THING, KeyError())
