import numpy as np
import pytest

from services.core.errors import InvariantBroken, Rejected
from services.topology import knot


def test_the_worst_pair_is_avoided_before_the_sum_is_small() -> None:
    levels = [[0, 5], [5, 9]]  # sum: 9 against 10, but 9 is worse than 5
    assert knot.assign(levels, min_size=1, max_size=1) == ((1,), (0,))


def test_equal_clients_take_the_lowest_cluster_in_their_order() -> None:
    assert knot.assign(np.zeros((4, 2), int), min_size=1, max_size=3) == ((0,), (0,), (0,), (1,))


def test_a_second_membership_is_taken_only_where_a_cluster_needs_it() -> None:
    levels = np.zeros((2, 3), int)
    found = knot.assign(levels, min_size=1, max_size=2, max_memberships=2)
    assert found == ((0, 1), (2,))


def test_more_memberships_than_clusters_are_no_error() -> None:
    assert knot.assign([[3, 4]], min_size=1, max_size=1, max_memberships=9) == ((0, 1),)


@pytest.mark.parametrize(
    ("shape", "low", "high", "memberships"),
    [
        ((10, 2), 6, 10, 1),
        ((10, 2), 1, 4, 1),
        ((4, 2), 3, 2, 1),
        ((2, 5), 1, 2, 1),
        ((3, 2), 4, 9, 2),
        ((0, 2), 0, 1, 1),
    ],
)
def test_infeasible_bounds_are_refused(shape: tuple[int, int], low: int, high: int, memberships: int) -> None:
    with pytest.raises(Rejected) as caught:
        knot.assign(np.zeros(shape, int), min_size=low, max_size=high, max_memberships=memberships)
    assert caught.value.code == "invalid-run"


def test_the_refusal_names_bounds_that_work() -> None:
    with pytest.raises(Rejected, match="4 clusters with min_size 1 and max_size 5"):
        knot.check_bounds(10, 4, 3, 5)
    knot.check_bounds(10, 4, 1, 5)


def test_levels_that_are_no_integers_are_our_mistake() -> None:
    with pytest.raises(InvariantBroken):
        knot.assign(np.array([[0.5, 1.0]]), min_size=0, max_size=1)


@pytest.mark.parametrize(("clients", "clusters", "bounds"), [(100, 5, (10, 50)), (7, 1, (3, 7)), (5, 5, (1, 3))])
def test_default_bounds_are_those_of_the_paper_without_empty_clusters(
    clients: int, clusters: int, bounds: tuple[int, int]
) -> None:
    assert knot.default_bounds(clients, clusters) == bounds
    knot.check_bounds(clients, clusters, *bounds)


def test_linear_anchors_span_what_was_observed() -> None:
    levels, anchors = knot.profile_levels([10.0, 20.0, 30.0], [0.1, 0.2, 0.3], 3)
    assert anchors.times == (10.0, 20.0, 30.0)
    assert anchors.disparities == pytest.approx((0.1, 0.2, 0.3))
    assert levels[[0, 1, 2], [0, 1, 2]].tolist() == [0, 0, 0]
    assert levels[0, 2] == levels[2, 0] == 100


def test_paper_anchors_use_disparities_as_they_are() -> None:
    _, anchors = knot.profile_levels([1.0, 3.0], [0.4, 0.6], 4, anchors="paper")
    assert anchors.disparities == (0.25, 0.5, 0.75, 1.0)
    assert anchors.disparity_range == (0.0, 1.0)
    assert anchors.times[-1] == 3.0


def test_quantile_anchors_are_not_drawn_away_by_one_slow_client() -> None:
    _, anchors = knot.profile_levels([1.0, 2.0, 3.0, 4.0, 10_000.0], [0.5] * 5, 2, anchors="quantile")
    assert anchors.times == (2.0, 4.0)


def test_one_cluster_has_its_anchor_in_the_middle() -> None:
    _, anchors = knot.profile_levels([2.0, 4.0], [0.2, 0.6], 1)
    assert anchors.times == (3.0,)
    assert anchors.disparities == pytest.approx((0.4,))


def test_clients_that_do_not_differ_have_level_zero() -> None:
    levels, _ = knot.profile_levels([5.0] * 4, [0.5] * 4, 2)
    assert levels.tolist() == [[0, 0]] * 4


def test_levels_round_up() -> None:
    levels, anchors = knot.profile_levels([0.0, 999.0, 1000.0], [0.5] * 3, 2)
    assert anchors.times == (0.0, 1000.0)
    assert levels.tolist() == [[0, 100], [100, 1], [100, 0]]


def test_a_newcomer_goes_to_the_nearest_anchor_that_has_room() -> None:
    _, anchors = knot.profile_levels([0.0, 10.0], [0.0, 1.0], 3)
    (distances,) = anchors.distances([11.0], [1.0]).tolist()
    assert knot.place_newcomer(distances, {0: 1, 1: 1, 2: 1}, max_size=2) == 2
    assert knot.place_newcomer(distances, {0: 1, 1: 1, 2: 2}, max_size=2) == 1
    assert knot.place_newcomer(distances, {0: 1, 2: 2}, max_size=2) == 0
    with pytest.raises(Rejected, match="hold 2 clients already"):
        knot.place_newcomer(distances, {0: 2, 1: 2, 2: 2}, max_size=2)


def test_a_newcomer_of_random_clusters_goes_to_a_smallest_one_by_lot() -> None:
    assert knot.draw_for_newcomer("x", {0: 3, 1: 2, 2: 3}, 3, seed=1) == 1
    drawn = {knot.draw_for_newcomer(f"x{i}", {0: 2, 1: 2, 2: 3}, 4, seed=1) for i in range(20)}
    assert drawn == {0, 1}
    with pytest.raises(Rejected, match="hold 3 clients already"):
        knot.draw_for_newcomer("x", {0: 3, 1: 3}, 3, seed=1)


def test_anchors_survive_as_figures() -> None:
    _, anchors = knot.profile_levels([1.0, 5.0, 9.0], [0.1, 0.7, 0.3], 11)
    assert knot.Anchors.from_figures(anchors.figures()) == anchors


def test_random_clusters_depend_on_names_and_seed_alone() -> None:
    names = [f"c{i}" for i in range(11)]
    drawn = dict(zip(names, knot.random_assignment(names, 3, 7, 3, 4), strict=True))
    turned = dict(zip(names[::-1], knot.random_assignment(names[::-1], 3, 7, 3, 4), strict=True))
    assert drawn == turned
    assert drawn != dict(zip(names, knot.random_assignment(names, 3, 8, 3, 4), strict=True))
    assert sorted(sum(indices == (n,) for indices in drawn.values()) for n in range(3)) == [3, 4, 4]


def test_random_clusters_obey_the_bounds_or_are_refused() -> None:
    with pytest.raises(Rejected):
        knot.random_assignment(["a", "b", "c"], 2, 0, 2, 2)


def test_disparity_is_half_of_one_minus_the_cosine() -> None:
    step = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert knot.disparity(step, 3 * step) == 0.0
    assert knot.disparity(step, -step) == 1.0
    assert knot.disparity(step, step[::-1]) == 0.5


def test_an_update_without_direction_is_neither_with_nor_against_the_others() -> None:
    assert knot.disparity(np.ones(3), np.zeros(3)) == 0.5
    assert knot.disparity(np.zeros(3), np.ones(3)) == 0.5
