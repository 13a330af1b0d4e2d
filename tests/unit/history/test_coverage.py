from __future__ import annotations

from services.history.coverage import cover, is_kept, stride
from services.history.spec import UpdateHistory


def rounds(last: int, num_bytes: int = 10) -> dict[int, int]:
    return dict.fromkeys(range(1, last + 1), num_bytes)


def test_every_nth_round_is_kept_beginning_with_the_first() -> None:
    policy = UpdateHistory(interval=3)
    assert [round for round in range(1, 11) if is_kept(round, policy)] == [1, 4, 7, 10]
    assert cover(rounds(10), policy).dropped == (2, 3, 5, 6, 8, 9)


def test_a_window_keeps_the_newest_rounds_and_the_first() -> None:
    found = cover(rounds(10), UpdateHistory(window=3))
    assert found.kept == (1, 8, 9, 10)


def test_a_history_above_its_budget_is_thinned_evenly_and_keeps_the_first_round() -> None:
    found = cover(rounds(16), UpdateHistory(budget_bytes=50))
    assert found.kept == (1, 5, 9, 13)
    assert (found.num_bytes, found.interval, found.fits) == (40, 4, True)
    assert "thinned to every 4. round" in found.report


def test_a_budget_below_the_first_round_is_said_to_be_too_small() -> None:
    found = cover(rounds(8), UpdateHistory(budget_bytes=5))
    assert found.kept == (1,) and not found.fits
    assert "raise budget_bytes" in found.report


def test_an_empty_history_and_one_without_its_first_round_say_so() -> None:
    assert "nothing is kept" in cover({}, UpdateHistory()).report
    assert "round 1 is missing" in cover({2: 10, 3: 10}, UpdateHistory()).report


def test_what_is_kept_never_exceeds_the_budget_unless_it_is_said() -> None:
    for budget in range(1, 200, 7):
        for interval in (1, 2, 3):
            found = cover(rounds(20), UpdateHistory(budget_bytes=budget, interval=interval))
            assert 1 in found.kept
            assert found.fits == (found.num_bytes <= budget)
            assert found.fits or found.kept == (1,)
            assert sorted((*found.kept, *found.dropped)) == list(range(1, 21))


def test_the_stride_passes_over_every_missing_round() -> None:
    assert stride([]) == 1
    assert stride([2, 4, 6]) == 2
    assert stride([2, 3, 4, 6, 7, 8]) == 4
    assert stride([2, 3, 4, 5, 6, 7]) == 7
