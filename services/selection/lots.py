"""Draws by lot: a client's lot depends on the seed, the round and its own name alone. So anybody can make the same draw
again, and who leaves changes nobody else's lot."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence


def lot(seed: int, round: int | str, name: str) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}\x1f{round}\x1f{name}".encode()).digest(), name


def by_lot(candidates: Sequence[str], k: int, seed: int, round: int) -> list[str]:
    """The k candidates with the smallest lots, in name order. Every set of k is equally likely."""
    draw = f"{seed}\x1f{round}\x1f".encode()
    return sorted(
        heapq.nsmallest(k, candidates, key=lambda name: (hashlib.sha256(draw + name.encode()).digest(), name))
    )


def in_turns(groups: Iterable[Iterable[str]]) -> list[str]:
    """The members of groups that are in order themselves: the first of each group, then the second of each, …"""
    ranked = [(place, number, name) for number, group in enumerate(groups) for place, name in enumerate(group)]
    return [name for _, _, name in sorted(ranked)]


def grouped(group_of: Mapping[str, int]) -> list[list[str]]:
    """The names of each group, in the order of the groups' numbers and then of names."""
    groups: dict[int, list[str]] = {}
    for name in sorted(group_of):
        groups.setdefault(group_of[name], []).append(name)
    return [groups[number] for number in sorted(groups)]
