"""Selection policies: pure functions of the members' names, so that the same draw can be made again anywhere.

A policy takes (members, k, seed, round) and returns min(k, number of members) names in name order.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from typing import Final

Policy = Callable[[Sequence[str], int, int, int], list[str]]


def uniform(members: Sequence[str], k: int, seed: int, round: int) -> list[str]:
    """The k members with the smallest sha256 of (seed, round, name).

    Every subset is equally likely, and when a member leaves, those chosen among the others stay chosen.
    """

    draw = f"{seed}\x1f{round}\x1f".encode()

    def lot(name: str) -> tuple[bytes, str]:
        return hashlib.sha256(draw + name.encode()).digest(), name

    return sorted(heapq.nsmallest(k, members, key=lot))


def round_robin(members: Sequence[str], k: int, seed: int, round: int) -> list[str]:
    """A window of k over the sorted names that moves on by k each round; the seed plays no part."""
    names = sorted(members)
    return sorted(names[(round * k + i) % len(names)] for i in range(min(k, len(names))))


POLICIES: Final[dict[str, Policy]] = {"uniform": uniform, "round_robin": round_robin}
