"""What holds for every assignment, whatever the levels; equality with an oracle is tested in tests/reference."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from services.topology.knot import assign, default_bounds, profile_levels, random_assignment

Levels = npt.NDArray[np.int64]
Instance = tuple[Levels, int, int, int]


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Levels and feasible bounds."""
    num_clients, num_clusters = draw(st.integers(1, 40)), draw(st.integers(1, 7))
    max_memberships = draw(st.integers(1, num_clusters))
    top = draw(st.sampled_from([0, 1, 3, 100]))
    levels = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, top + 1, (num_clients, num_clusters))
    low = draw(st.integers(0, min(num_clients, num_clients * max_memberships // num_clusters)))
    high = draw(st.integers(max(low, -(-num_clients // num_clusters)), num_clients))
    return levels, low, high, max_memberships


def solve(instance: Instance) -> tuple[tuple[int, ...], ...]:
    levels, low, high, max_memberships = instance
    return assign(levels, min_size=low, max_size=high, max_memberships=max_memberships)


def rating(levels: Levels, assignment: tuple[tuple[int, ...], ...]) -> list[int]:
    """The non-zero levels of all pairs, largest first."""
    assigned = (int(levels[k, n]) for k, clusters in enumerate(assignment) for n in clusters)
    return sorted(filter(None, assigned), reverse=True)


@given(instances())
def test_every_bound_is_kept(instance: Instance) -> None:
    levels, low, high, max_memberships = instance
    found = solve(instance)
    assert len(found) == len(levels)
    assert all(1 <= len(clusters) <= max_memberships for clusters in found)
    assert all(list(clusters) == sorted(set(clusters)) for clusters in found)
    for cluster in range(levels.shape[1]):
        assert low <= sum(cluster in clusters for clusters in found) <= high


@given(instances(), st.integers(0, 2**32))
def test_the_rating_does_not_depend_on_the_order_of_clients_and_clusters(instance: Instance, seed: int) -> None:
    levels, low, high, max_memberships = instance
    rng = np.random.default_rng(seed)
    shuffled = levels[rng.permutation(len(levels))][:, rng.permutation(levels.shape[1])]
    assert rating(shuffled, solve((shuffled, low, high, max_memberships))) == rating(levels, solve(instance))


@given(instances())
def test_only_the_order_of_the_levels_counts(instance: Instance) -> None:
    levels, low, high, max_memberships = instance
    assert solve((levels**2 * 7, low, high, max_memberships)) == solve(instance)


@given(instances())
def test_no_move_and_no_swap_makes_it_better(instance: Instance) -> None:
    levels, low, high, max_memberships = instance
    found = solve(instance)
    if max_memberships > 1:
        return
    best = rating(levels, found)
    cluster_of = [clusters[0] for clusters in found]
    sizes = np.bincount(cluster_of, minlength=levels.shape[1])
    for k, cluster in product(range(len(levels)), range(levels.shape[1])):
        moved = (*found[:k], (cluster,), *found[k + 1 :])
        if sizes[cluster] < high and sizes[cluster_of[k]] > low:
            assert rating(levels, moved) >= best
    for k in range(len(levels) - 1):
        swapped = (*found[:k], found[k + 1], found[k], *found[k + 2 :])
        assert rating(levels, swapped) >= best


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), min_size=1, max_size=50),
    st.integers(1, 6),
    st.sampled_from(["linear", "paper", "quantile"]),
)
def test_every_profile_can_be_clustered_within_the_default_bounds(
    profiles: list[tuple[float, float]], num_clusters: int, anchors: str
) -> None:
    num_clusters = min(num_clusters, len(profiles))
    times, disparities = zip(*profiles, strict=True)
    levels, _ = profile_levels(times, disparities, num_clusters, anchors=anchors)  # type: ignore[arg-type]
    assert levels.min() >= 0
    assert levels.max() <= 100
    low, high = default_bounds(len(profiles), num_clusters)
    assign(levels, min_size=low, max_size=high)


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 2**63 - 1))
def test_random_clusters_differ_by_one_client_at_most(num_clients: int, num_clusters: int, seed: int) -> None:
    low, high = num_clients // num_clusters, -(-num_clients // num_clusters)
    drawn = random_assignment([f"client-{i}" for i in range(num_clients)], num_clusters, seed, low, high)
    sizes = np.bincount([index for (index,) in drawn], minlength=num_clusters)
    assert low <= sizes.min() <= sizes.max() <= high
