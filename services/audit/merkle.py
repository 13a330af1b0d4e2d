"""Merkle trees over lists too long to sign, as in RFC 9162 §2.1: SHA-256, with a byte of its own before what is hashed
for a leaf and for an inner node, so that neither can be taken for the other.

Nothing here holds more of a tree than its right edge, and the paths that are asked for.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

EMPTY: Final = hashlib.sha256(b"").digest()
"""The root of a tree without leaves."""


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def inner_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Tree:
    """Leaves come in order; `wanted` are the indices, in order, whose paths are kept."""

    def __init__(self, wanted: Sequence[int] = ()) -> None:
        self.num_leaves = 0
        self.paths: dict[int, list[bytes]] = {index: [] for index in wanted}
        self._wanted = list(wanted)
        self._edge: list[tuple[int, int, bytes]] = []
        """(first leaf, number of leaves, hash) of the full subtrees so far, from the left."""

    def add(self, leaf: bytes) -> None:
        """`leaf`: its hash."""
        edge = self._edge
        edge.append((self.num_leaves, 1, leaf))
        self.num_leaves += 1
        while len(edge) > 1 and edge[-1][1] == edge[-2][1]:
            self._join(edge)

    def root(self) -> bytes:
        """The root of the leaves so far. Afterwards the paths are complete, and no leaf may be added."""
        while len(self._edge) > 1:
            self._join(self._edge)
        return self._edge[0][2] if self._edge else EMPTY

    def _join(self, edge: list[tuple[int, int, bytes]]) -> None:
        """The two rightmost subtrees become one."""
        first_right, num_right, right = edge.pop()
        first_left, num_left, left = edge.pop()
        edge.append((first_left, num_left + num_right, inner_hash(left, right)))
        if not self._wanted:
            return
        self._extend(first_left, first_right, right)
        self._extend(first_right, first_right + num_right, left)

    def _extend(self, first: int, end: int, sibling: bytes) -> None:
        for position in range(bisect_left(self._wanted, first), bisect_left(self._wanted, end)):
            self.paths[self._wanted[position]].append(sibling)


def root_by_path(leaf: bytes, index: int, num_leaves: int, path: Sequence[bytes]) -> bytes:
    """The root that follows from one leaf and its siblings, from the leaf upwards (RFC 9162 §2.1.3.2).
    ValueError: no tree of this size has such a leaf, or its path has another length."""
    if not 0 <= index < num_leaves:
        raise ValueError(f"a tree of {num_leaves} leaves has none with index {index}")
    place, last, found = index, num_leaves - 1, leaf
    for sibling in path:
        if last == 0:
            raise ValueError("the path is too long")
        if place & 1 or place == last:
            found = inner_hash(sibling, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = inner_hash(found, sibling)
        place, last = place >> 1, last >> 1
    if last:
        raise ValueError("the path is too short")
    return found
