"""The tree against its definition, for every small size, every leaf and every wrong path."""

from __future__ import annotations

import contextlib
import hashlib

import pytest

from services.audit.merkle import EMPTY, Tree, inner_hash, leaf_hash, root_by_path

SIZES = range(1, 40)


def leaves_of(size: int) -> list[bytes]:
    return [leaf_hash(b"%d" % number) for number in range(size)]


def root_of(leaves: list[bytes]) -> bytes:
    tree = Tree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


def defined_root(leaves: list[bytes]) -> bytes:
    """RFC 9162 §2.1.1: split at the largest power of two below the size."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return inner_hash(defined_root(leaves[:half]), defined_root(leaves[half:]))


def test_leaves_and_inner_nodes_are_hashed_apart() -> None:
    assert leaf_hash(b"x") == hashlib.sha256(b"\x00x").digest()
    assert inner_hash(b"l" * 32, b"r" * 32) == hashlib.sha256(b"\x01" + b"l" * 32 + b"r" * 32).digest()
    assert leaf_hash(b"l" * 32 + b"r" * 32) != inner_hash(b"l" * 32, b"r" * 32)


def test_a_tree_without_leaves_has_the_root_of_nothing() -> None:
    assert root_of([]) == EMPTY == hashlib.sha256(b"").digest()


@pytest.mark.parametrize("size", SIZES)
def test_the_root_is_that_of_the_definition(size: int) -> None:
    assert root_of(leaves_of(size)) == defined_root(leaves_of(size))


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_is_proved_by_its_path_and_by_no_other(size: int) -> None:
    leaves = leaves_of(size)
    tree = Tree(range(size))
    for leaf in leaves:
        tree.add(leaf)
    root = tree.root()
    for index, leaf in enumerate(leaves):
        path = tree.paths[index]
        assert root_by_path(leaf, index, size, path) == root
        assert root_by_path(leaf_hash(b"another"), index, size, path) != root
        for other in set(range(size)) - {index}:
            with contextlib.suppress(ValueError):  # another index has a path of another length
                assert root_by_path(leaf, other, size, path) != root
        with pytest.raises(ValueError, match="too long"):
            root_by_path(leaf, index, size, [*path, root])
        if path:
            with pytest.raises(ValueError, match="too short"):
                root_by_path(leaf, index, size, path[:-1])


@pytest.mark.parametrize("index", [-1, 3, 4])
def test_a_leaf_outside_the_tree_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="a tree of 3 leaves has none"):
        root_by_path(EMPTY, index, 3, [])
