"""The draw by lot."""

from __future__ import annotations

from collections.abc import Sequence

from services.selection.lots import by_lot


def draw(members: Sequence[str], k: int, seed: int, round: int) -> list[str]:
    """The k members with the smallest sha256 of (seed, round, name). When a member leaves, those chosen among the
    others stay chosen."""
    return by_lot(members, k, seed, round)
