"""The window."""

from __future__ import annotations

from collections.abc import Sequence


def draw(members: Sequence[str], k: int, seed: int, round: int) -> list[str]:
    """A window of k over the sorted names that moves on by k each round; the seed plays no part."""
    names = sorted(members)
    return sorted(names[(round * k + i) % len(names)] for i in range(min(k, len(names))))
