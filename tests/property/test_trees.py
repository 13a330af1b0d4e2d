"""Influence trees: which shape is best, among all trees there are, and what every erasure and arrival must keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.topology.influence_tree import Node, Shape, bi_model, build, erase, ids, join, walk

CLIENTS = "abcdef"


def partitions(items: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All ways to divide `items` into blocks."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = tuple(item for item in rest if item not in others)
            for more in partitions(left):
                yield ((first, *others), *more)


@cache
def subtrees(members: tuple[str, ...]) -> tuple[Node, ...]:
    """Every tree over these clients in which an inner node has two children or more."""
    if len(members) == 1:
        return (Node(f"leaf:{members[0]}", members),)
    found: list[Node] = []
    for blocks in partitions(members):
        if len(blocks) > 1:
            choices: list[tuple[Node, ...]] = [()]
            for block in blocks:
                choices = [(*chosen, child) for chosen in choices for child in subtrees(block)]
            found.extend(Node("node:" + "".join(members), members, children) for children in choices)
    return tuple(found)


def all_trees(clients: Sequence[str]) -> list[Node]:
    return [Node("root", tree.members, tree.children) for tree in subtrees(tuple(clients))]


def test_all_trees_are_counted() -> None:
    assert [len(all_trees(CLIENTS[:n])) for n in (2, 3, 4, 5, 6)] == [1, 4, 26, 236, 2752]  # Schröder's fourth problem


@pytest.mark.parametrize("num_clients", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(8))
def test_huffman_has_the_lowest_ids_of_all_trees(num_clients: int, seed: int) -> None:
    random = Random(seed)
    clients = CLIENTS[:num_clients]
    probabilities = {client: random.choice([random.random(), random.random() ** 6, 0.25]) for client in clients}
    lowest = min(ids(tree, probabilities) for tree in all_trees(clients))
    assert ids(build("huffman", clients, probabilities=probabilities), probabilities) == pytest.approx(
        lowest, rel=1e-12
    )


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(2, 6))
def test_no_shape_beats_huffman(chances: list[float], branching: int) -> None:
    probabilities = {f"c{i:02}": chance for i, chance in enumerate(chances)}
    best = ids(build("huffman", list(probabilities), probabilities=probabilities), probabilities)
    for shape in get_args(Shape):
        tree = build(shape, list(probabilities), probabilities=probabilities, branching=branching, expiry=probabilities)
        assert ids(tree, probabilities) >= best - 1e-9
    assert ids(bi_model(list(probabilities)), probabilities) >= best - 1e-9


def models_merged(tree: Node, departures: Sequence[str]) -> int:
    """How many models the new global models are made of, over departures one after the other."""
    merged = 0
    current: Node | None = tree
    for client in departures:
        assert current is not None
        erased = erase(current, [client])
        merged += len(dict(erased.reinitialised).get("root", ()))
        current = erased.tree
    return merged


@pytest.mark.parametrize("num_clients", [2, 3, 4, 5, 6])
def test_by_expiry_merges_fewest_models_over_a_fixed_order(num_clients: int) -> None:
    clients = CLIENTS[:num_clients]
    for num_leaving in range(1, num_clients + 1):
        leaving = clients[:num_leaving]  # all labelled trees are tried, so one order stands for all
        tree = build("by_expiry", clients, expiry={client: i for i, client in enumerate(leaving)})
        fewest = min(models_merged(other, leaving) for other in all_trees(clients))
        assert models_merged(tree, leaving) == fewest


@st.composite
def trees(draw: st.DrawFn) -> Node:
    """Trees of every shape, some of which have a history of departures and arrivals."""
    num_clients = draw(st.integers(1, 16))
    clients = [f"c{i:02}" for i in range(num_clients)]
    shape = draw(st.sampled_from([*get_args(Shape), "bi_model"]))
    if shape == "bi_model":
        tree = bi_model(clients)
    else:
        numbers = {client: draw(st.sampled_from([0.0, 0.1, 0.5, 0.9])) for client in clients}
        tree = build(shape, clients, probabilities=numbers, branching=draw(st.integers(2, 4)), expiry=numbers)
    for step in range(draw(st.integers(0, 4))):
        if len(tree.members) > 1 and draw(st.booleans()):
            after = erase(tree, [draw(st.sampled_from(tree.members))]).tree
            assert after is not None
            tree = after
        else:
            tree, _ = join(tree, f"new{step}")
    return tree


def is_laminar(tree: Node) -> bool:
    cohorts = [set(node.members) for node in walk(tree)]
    return all(a <= b or b <= a or not a & b for a, b in combinations(cohorts, 2))


def check_tree(tree: Node) -> None:
    nodes = list(walk(tree))
    assert len({node.name for node in nodes}) == len(nodes)
    assert is_laminar(tree)
    for node in nodes:
        if node.children:
            assert sorted(member for child in node.children for member in child.members) == list(node.members)
            assert len(node.children) > 1 or (node is tree and not node.children[0].children)
        else:
            assert len(node.members) == 1
            assert node.name == f"leaf:{node.members[0]}"
    assert tree.name == "root"


@given(trees())
def test_every_tree_is_a_laminar_family_of_its_leaves(tree: Node) -> None:
    check_tree(tree)


@given(trees(), st.data())
def test_surgery_keeps_what_is_clean_and_nothing_else(tree: Node, data: st.DataObject) -> None:
    leavers = data.draw(st.sets(st.sampled_from(tree.members), min_size=1))
    remaining = [member for member in tree.members if member not in leavers]
    erased = erase(tree, leavers)
    before = {node.name: node for node in walk(tree)}
    after = {node.name: node for node in walk(erased.tree)} if erased.tree else {}

    assert (erased.tree is None) == (not remaining)
    if erased.tree:
        check_tree(erased.tree)
        assert list(erased.tree.members) == remaining
    assert set(after) | set(erased.retired) == set(before)
    assert not set(after) & set(erased.retired)
    assert len(set(erased.retired)) == len(erased.retired)

    reinitialised = dict(erased.reinitialised)
    for name, node in after.items():  # an untouched cohort keeps its members, every other one starts again
        assert leavers.isdisjoint(node.members)
        assert (name in reinitialised) == (not leavers.isdisjoint(before[name].members))
    assert set(reinitialised) <= set(after)

    for name, sources in erased.reinitialised:
        members = [member for source in sources for member in before[source].members]
        assert sorted(members) == list(after[name].members)  # disjoint, clean, and nobody is missing
        for source in sources:  # maximal: everything above a source held a leaver
            above = [node for node in before.values() if set(node.members) > set(before[source].members)]
            assert all(not leavers.isdisjoint(node.members) for node in above)


@given(trees(), st.data())
def test_nodes_below_are_averaged_before_those_above(tree: Node, data: st.DataObject) -> None:
    leavers = data.draw(st.sets(st.sampled_from(tree.members), min_size=1))
    order = [name for name, _ in erase(tree, leavers).reinitialised]
    members = {node.name: set(node.members) for node in walk(tree)}
    assert not any(members[later] < members[earlier] for earlier, later in combinations(order, 2))


@given(trees(), st.data())
def test_leaving_together_or_in_turn_keeps_the_same_clients(tree: Node, data: st.DataObject) -> None:
    leavers = data.draw(st.lists(st.sampled_from(tree.members), min_size=1, unique=True))
    one_by_one: Node | None = tree
    for leaver in leavers:
        assert one_by_one is not None
        one_by_one = erase(one_by_one, [leaver]).tree
    together = erase(tree, leavers).tree
    if together is None or one_by_one is None:
        assert together is one_by_one
        return
    cohorts = {node.members for node in walk(together)}
    assert cohorts == {node.members for node in walk(one_by_one)}


@given(trees())
def test_an_arrival_renames_nothing(tree: Node) -> None:
    grown, grafted = join(tree, "zoe")
    check_tree(grown)
    before, after = ({node.name: node for node in walk(each)} for each in (tree, grown))
    assert set(after) == set(before) | set(grafted)
    assert not set(before) & set(grafted)
    for name, node in before.items():
        assert set(after[name].members) - {"zoe"} == set(node.members)
    assert grown.members == tuple(sorted((*tree.members, "zoe")))
