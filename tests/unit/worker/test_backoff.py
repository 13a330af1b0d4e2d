from __future__ import annotations

from worker.backoff import Backoff


def test_delays_double_and_never_exceed_the_cap() -> None:
    backoff = Backoff(first_s=1.0, cap_s=15.0, jitter=lambda: 1.0)
    assert [backoff.delay(attempt) for attempt in (0, 1, 2, 3, 4, 1000)] == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


def test_full_jitter_may_shrink_a_delay_to_nothing() -> None:
    assert Backoff(jitter=lambda: 0.0).delay(10) == 0.0


def test_a_retry_after_is_never_undercut() -> None:
    assert Backoff(jitter=lambda: 0.0).delay(0, retry_after_s=40.0) == 40.0


def test_an_absurd_retry_after_is_bounded() -> None:
    assert Backoff(jitter=lambda: 0.0).delay(0, retry_after_s=1e9) == 300.0
