"""KNOT's assignment against two oracles: every assignment tried, and a minimum-cost flow with weights base^D in
unbounded integers. Neither knows anything of levels handled one after the other, faces or patterns."""

from __future__ import annotations

from itertools import combinations, product
from random import Random

import numpy as np
import pytest

from services.topology.knot import assign

Assignment = tuple[tuple[int, ...], ...]
Levels = list[list[int]]


def weight(levels: Levels, client: int, cluster: int, max_memberships: int) -> int:
    """The count of pairs at each level is a digit, level 0 the last; then a bit for each pair, in row-major order."""
    num_clients, num_clusters = len(levels), len(levels[0])
    base = num_clients * max_memberships + 1
    num_bits = num_clients * num_clusters
    bit = num_bits - 1 - (client * num_clusters + cluster)
    return int(base ** levels[client][cluster] * 2**num_bits - 2**bit)


def cost(levels: Levels, assignment: Assignment, max_memberships: int) -> int:
    return sum(weight(levels, k, n, max_memberships) for k, clusters in enumerate(assignment) for n in clusters)


def try_everything(levels: Levels, low: int, high: int, max_memberships: int) -> Assignment:
    num_clusters = len(levels[0])
    choices = [c for size in range(1, max_memberships + 1) for c in combinations(range(num_clusters), size)]

    def fits(assignment: Assignment) -> bool:
        sizes = [sum(n in clusters for clusters in assignment) for n in range(num_clusters)]
        return all(low <= size <= high for size in sizes)

    def key(assignment: Assignment) -> tuple[list[int], int, list[int]]:
        pairs = [(k, n) for k, clusters in enumerate(assignment) for n in clusters]
        padding = [0] * (len(levels) * max_memberships - len(pairs))
        in_row_major_order = [-int(n in clusters) for clusters in assignment for n in range(num_clusters)]
        return sorted([levels[k][n] for k, n in pairs] + padding, reverse=True), len(pairs), in_row_major_order

    return min(filter(fits, product(choices, repeat=len(levels))), key=key)


def big_integer_flow(levels: Levels, low: int, high: int, max_memberships: int) -> Assignment:
    """Successive shortest paths by Bellman–Ford. A mandatory unit has a cost so negative that it is always sent."""
    num_clients, num_clusters = len(levels), len(levels[0])
    source, sink = num_clients + num_clusters, num_clients + num_clusters + 1
    arcs: list[list[int]] = []  # tail, head, capacity, cost; the reverse arc is the next one

    def add(tail: int, head: int, capacity: int, unit_cost: int) -> None:
        arcs.append([tail, head, capacity, unit_cost])
        arcs.append([head, tail, 0, -unit_cost])

    for k in range(num_clients):
        for n in range(num_clusters):
            add(k, num_clients + n, 1, weight(levels, k, n, max_memberships))
    mandatory = -(1 + sum(arc[3] for arc in arcs[::2]))
    for k in range(num_clients):
        add(source, k, 1, mandatory)
        add(source, k, max_memberships - 1, 0)
    for n in range(num_clusters):
        add(num_clients + n, sink, low, mandatory)
        add(num_clients + n, sink, high - low, 0)
    while True:
        distance: dict[int, int] = {source: 0}
        through: dict[int, int] = {}
        changed = True
        while changed:
            changed = False
            for index, (tail, head, capacity, unit_cost) in enumerate(arcs):
                if capacity and tail in distance:
                    reached = distance[tail] + unit_cost
                    if head not in distance or reached < distance[head]:
                        distance[head], through[head], changed = reached, index, True
        if distance.get(sink, 0) >= 0:
            break
        node = sink
        while node != source:
            arcs[through[node]][2] -= 1
            arcs[through[node] ^ 1][2] += 1
            node = arcs[through[node]][0]
    used = [arcs[2 * index][2] == 0 for index in range(num_clients * num_clusters)]
    return tuple(tuple(n for n in range(num_clusters) if used[k * num_clusters + n]) for k in range(num_clients))


def draw_instance(random: Random, max_clients: int, max_clusters: int) -> tuple[Levels, int, int, int]:
    """Feasible bounds, often the tightest ones; few different levels, so that there are ties."""
    num_clients = random.randint(1, max_clients)
    num_clusters = random.randint(1, max_clusters)
    max_memberships = random.randint(1, min(3, num_clusters))
    top = random.choice([0, 1, 2, 5, 100])
    levels = [[random.randint(0, top) for _ in range(num_clusters)] for _ in range(num_clients)]
    if random.random() < 0.3:  # clients that cannot be told apart
        levels = [random.choice(levels) for _ in levels]
    tightest_low = min(num_clients, num_clients * max_memberships // num_clusters)
    tightest_high = -(-num_clients // num_clusters)
    low = random.choice([0, tightest_low, random.randint(0, tightest_low)])
    high = max(low, random.choice([tightest_high, random.randint(tightest_high, num_clients)]))
    return levels, low, high, max_memberships


@pytest.mark.parametrize("seed", range(150))
def test_assignment_is_the_best_of_all(seed: int) -> None:
    levels, low, high, max_memberships = draw_instance(Random(seed), max_clients=5, max_clusters=3)
    found = assign(np.array(levels), min_size=low, max_size=high, max_memberships=max_memberships)
    assert found == try_everything(levels, low, high, max_memberships)


@pytest.mark.parametrize("seed", range(250))
def test_assignment_equals_the_big_integer_flow(seed: int) -> None:
    levels, low, high, max_memberships = draw_instance(Random(1000 + seed), max_clients=14, max_clusters=5)
    found = assign(np.array(levels), min_size=low, max_size=high, max_memberships=max_memberships)
    expected = big_integer_flow(levels, low, high, max_memberships)
    assert cost(levels, found, max_memberships) == cost(levels, expected, max_memberships)
    assert found == expected


def test_the_two_oracles_agree() -> None:
    for seed in range(30):
        levels, low, high, max_memberships = draw_instance(Random(seed), max_clients=4, max_clusters=3)
        assert big_integer_flow(levels, low, high, max_memberships) == try_everything(
            levels, low, high, max_memberships
        )


@pytest.mark.parametrize("seed", range(3))
def test_assignment_equals_the_big_integer_flow_where_a_double_overflows(seed: int) -> None:
    random = Random(seed)
    levels = [[random.randint(0, 100) for _ in range(4)] for _ in range(40)]  # 41^100 is 10^161, with ties 2^160 more
    found = assign(np.array(levels), min_size=8, max_size=11)
    assert found == big_integer_flow(levels, 8, 11, 1)
