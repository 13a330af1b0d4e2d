"""Durations are drawn by name; the event queue hands out what is due in an order that everybody agrees on."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from services.core.errors import InvariantBroken
from services.simulation.durations import Duration, Fixed, LogNormal, Measured, Pareto, draw
from services.simulation.event_queue import EventQueue

NAMES = [f"client-{i}" for i in range(4000)]


def times(duration: Duration, seed: int = 1, task: str = "round-1") -> list[float]:
    return [draw(duration, seed, name, task) for name in NAMES]


def test_everybody_takes_a_fixed_time() -> None:
    assert set(times(Fixed(seconds=2.5))) == {2.5}


def test_pareto_times_have_the_tail_of_their_exponent() -> None:
    drawn = times(Pareto(scale_s=2.0))
    assert min(drawn) >= 2.0
    for factor in (2, 4, 10):
        assert sum(time > 2.0 * factor for time in drawn) / len(drawn) == pytest.approx(1 / factor, abs=0.03)
    assert max(times(Pareto(scale_s=2.0, at_most_s=80.0))) == 80.0 < max(drawn)
    assert times(Pareto(scale_s=2.0, base_s=20.0)) == [20.0 + time for time in drawn]


def test_log_normal_times_have_their_median_and_spread() -> None:
    logs = [math.log(time) for time in times(LogNormal(scale_s=3.0, sigma=0.5))]
    assert statistics.median(logs) == pytest.approx(math.log(3.0), abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.5, abs=0.03)


def test_measured_times_are_taken_equally_often() -> None:
    drawn = times(Measured(seconds=(1.0, 5.0, 9.0)))
    assert set(drawn) == {1.0, 5.0, 9.0}
    assert drawn.count(5.0) / len(drawn) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("kind", [Pareto, LogNormal])
def test_a_draw_depends_on_its_names_alone(kind: type[Pareto] | type[LogNormal]) -> None:
    per_client, per_task = kind(per="client"), kind(per="task")
    assert draw(per_client, 1, "a", "round-1") == draw(per_client, 1, "a", "round-2")
    assert draw(per_task, 1, "a", "round-1") != draw(per_task, 1, "a", "round-2")
    assert draw(per_task, 1, "a", "round-1") == draw(per_task, 1, "a", "round-1")
    assert draw(per_client, 1, "a", "x") != draw(per_client, 2, "a", "x") != draw(per_client, 2, "b", "x")


def test_the_bits_of_a_draw_are_part_of_an_experiment() -> None:
    assert draw(Pareto(), 0, "client-0", "round-1") == pytest.approx(1.1757484089642203, rel=1e-12)


def test_a_duration_with_a_typo_names_the_allowed_kinds() -> None:
    with pytest.raises(ValidationError, match="'fixed', 'pareto', 'log_normal', 'measured'"):
        TypeAdapter[Duration](Duration).validate_python({"kind": "parteo"})


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from("abcdefgh")), max_size=30))
def test_things_happen_in_the_order_of_instant_and_name_whoever_came_first(
    puts: list[tuple[float, str]],
) -> None:
    last = {name: instant for instant, name in puts}
    event_queue: EventQueue[str] = EventQueue()
    for instant, name in puts:
        event_queue.put(instant, name, name.upper())
    assert len(event_queue) == len(last)
    seen = []
    while event_queue.next_instant() is not None:
        name, thing = event_queue.pop()
        assert thing == name.upper()
        seen.append((event_queue.now, name))
    assert seen == sorted((instant, name) for name, instant in last.items())


def test_what_was_dropped_does_not_happen() -> None:
    event_queue: EventQueue[int] = EventQueue()
    event_queue.put(1.0, "a", 1)
    event_queue.put(2.0, "b", 2)
    event_queue.drop("a")
    event_queue.drop("a")
    assert event_queue.next_instant() == 2.0
    assert event_queue.pop() == ("b", 2)
    assert event_queue.now == 2.0
    assert event_queue.next_instant() is None


def test_time_never_runs_backwards_or_past_what_is_due() -> None:
    event_queue: EventQueue[None] = EventQueue()
    event_queue.put(3.0, "a", None)
    event_queue.advance(2.0)
    for instant in (1.0, math.inf):
        with pytest.raises(InvariantBroken):
            event_queue.put(instant, "b", None)
    for instant in (1.0, 4.0):
        with pytest.raises(InvariantBroken):
            event_queue.advance(instant)
    event_queue.pop()
    with pytest.raises(InvariantBroken):
        event_queue.pop()
