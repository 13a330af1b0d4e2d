import pytest

from services.core.errors import InvariantBroken, Rejected
from services.topology import spec
from services.topology.cohorts import CohortPlan, erasure_probabilities, plan_cohorts

CLIENTS = ["d", "a", "c", "b"]


def test_a_flat_run_is_one_line_of_everybody() -> None:
    assert plan_cohorts(spec.Flat(), CLIENTS, 0) == (CohortPlan("all", ("a", "b", "c", "d"), None, "line", "all"),)


def test_isolated_clients_are_lines_of_their_own() -> None:
    plans = plan_cohorts(spec.Isolated(kind="isolated"), ["b", "a"], 0)
    assert plans == (
        CohortPlan("leaf:a", ("a",), None, "leaf", "leaf:a"),
        CohortPlan("leaf:b", ("b",), None, "leaf", "leaf:b"),
    )


def test_a_bi_model_is_a_root_and_its_leaves() -> None:
    plans = plan_cohorts(spec.BiModel(kind="bi_model"), ["b", "a"], 0)
    assert [(plan.name, plan.parent, plan.kind) for plan in plans] == [
        ("root", None, "root"),
        ("leaf:a", "root", "leaf"),
        ("leaf:b", "root", "leaf"),
    ]
    assert {plan.group for plan in plans} == {"root"}


def test_parents_come_before_their_children() -> None:
    plans = plan_cohorts(spec.Tree(kind="tree"), [f"c{i}" for i in range(9)], 0)
    seen: set[str | None] = {None}
    for plan in plans:
        assert plan.parent in seen
        seen.add(plan.name)
    assert [plan.kind for plan in plans].count("leaf") == 9
    assert [plan.kind for plan in plans].count("inner") == 7


def test_clusters_follow_the_assignment() -> None:
    topology = spec.Clusters(kind="clusters", num_clusters=2)
    plans = plan_cohorts(topology, CLIENTS, 0, assignment={"a": (0,), "b": (1,), "c": (0,), "d": (0, 1)})
    assert [(plan.name, plan.members, plan.group) for plan in plans] == [
        ("cluster-0", ("a", "c", "d"), "cluster-0"),
        ("cluster-1", ("b", "d"), "cluster-1"),
    ]


def test_random_clusters_are_drawn_from_names_and_seed() -> None:
    topology = spec.Clusters(kind="clusters", num_clusters=2, assignment="random")
    plans = plan_cohorts(topology, CLIENTS, 3)
    assert plans == plan_cohorts(topology, sorted(CLIENTS), 3)
    assert sorted(name for plan in plans for name in plan.members) == sorted(CLIENTS)


def test_random_clusters_with_impossible_bounds_are_refused() -> None:
    with pytest.raises(Rejected):
        plan_cohorts(spec.Clusters(kind="clusters", num_clusters=2, assignment="random", min_size=3), CLIENTS, 0)


def test_knot_clusters_need_their_profile() -> None:
    with pytest.raises(InvariantBroken):
        plan_cohorts(spec.Clusters(kind="clusters", num_clusters=2), CLIENTS, 0)


def test_a_tree_inside_each_cluster_carries_the_clusters_name() -> None:
    topology = spec.Clusters(kind="clusters", num_clusters=2, inside=spec.Tree(kind="tree"))
    plans = plan_cohorts(topology, CLIENTS, 0, assignment={"a": [0], "b": [1], "c": [0], "d": [1]})
    assert [plan.name for plan in plans] == [
        "cluster-0/root",
        "cluster-0/leaf:a",
        "cluster-0/leaf:c",
        "cluster-1/root",
        "cluster-1/leaf:b",
        "cluster-1/leaf:d",
    ]
    assert {plan.group for plan in plans} == {"cluster-0", "cluster-1"}


def test_clients_without_a_probability_share_what_is_missing() -> None:
    topology = spec.Tree(kind="tree", probabilities={"a": 0.5, "gone": 0.3})
    assert erasure_probabilities(topology, ["a", "b", "c"]) == {"a": 0.5, "b": 0.25, "c": 0.25}
    assert erasure_probabilities(spec.Tree(kind="tree"), ["a", "b"]) is None
