"""A thinned curve has the same ends and the same extremes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.core.thinning import thinned

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=300)


@given(values=VALUES, most=st.integers(4, 60))
def test_ends_and_extremes_stay_in_their_order(values: list[float], most: int) -> None:
    points = list(enumerate(values))
    kept = thinned(points, most, lambda point: point[1])
    assert len(kept) <= most and kept == sorted(kept)
    assert set(kept) <= set(points)
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert min(value for _, value in kept) == min(values)
    assert max(value for _, value in kept) == max(values)


@given(values=st.lists(st.floats(allow_nan=False), max_size=4))
def test_few_points_stay_as_they_are(values: list[float]) -> None:
    assert thinned(values, 4, float) == values
