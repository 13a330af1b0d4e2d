"""Fewer points of a curve, such that it still looks the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Point = TypeVar("Point")


def thinned(points: Sequence[Point], most: int, value_of: Callable[[Point], float]) -> list[Point]:
    """At most `most` (4 or more) of them, in their order: the first, the last, and the lowest and the highest of each
    of as many equal stretches as there is room for."""
    if len(points) <= most:
        return list(points)
    num_stretches = (most - 2) // 2
    inner = len(points) - 2
    kept = {0, len(points) - 1}
    for stretch in range(num_stretches):
        places = range(1 + stretch * inner // num_stretches, 1 + (stretch + 1) * inner // num_stretches)
        kept.add(min(places, key=lambda place: value_of(points[place])))
        kept.add(max(places, key=lambda place: value_of(points[place])))
    return [points[place] for place in sorted(kept)]
