"""The cohorts of a run: which lines are trained, by whom, and how they nest.

Cohorts of one `group` train in lock-step: selection is drawn once per round for the group, and a selected client trains
every cohort of the group that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from services.core.errors import InvariantBroken
from services.topology import influence_tree, spec
from services.topology.influence_tree import Node
from services.topology.knot import check_bounds, default_bounds, random_assignment

CohortKind = Literal["line", "root", "inner", "leaf"]

FLAT: Final = "all"


@dataclass(frozen=True)
class CohortPlan:
    """`line`: trained by itself, as in a flat run or a cluster. `root`, `inner`, `leaf`: nodes of a tree."""

    name: str
    members: tuple[str, ...]
    parent: str | None
    kind: CohortKind
    group: str


def plan_cohorts(
    topology: spec.Flat | spec.Clusters | spec.Tree | spec.BiModel | spec.Isolated,
    clients: Sequence[str],
    seed: int,
    *,
    assignment: Mapping[str, Sequence[int]] | None = None,
) -> tuple[CohortPlan, ...]:
    """Every cohort, parents before children.

    Clusters need an `assignment` (client name to cluster indices), unless theirs is random: then it follows from the
    names and the seed.
    """
    names = sorted(clients)
    match topology:
        case spec.Flat():
            return (CohortPlan(FLAT, tuple(names), None, "line", FLAT),)
        case spec.Isolated():
            leaves = (influence_tree.leaf(name) for name in names)
            return tuple(CohortPlan(node.name, node.members, None, "leaf", node.name) for node in leaves)
        case spec.BiModel():
            return plans_of(influence_tree.bi_model(names))
        case spec.Tree():
            return plans_of(build_tree(topology, names))
        case spec.Clusters():
            if assignment is None:
                assignment = _draw_clusters(topology, names, seed)
            return tuple(
                plan for index in range(topology.num_clusters) for plan in _cluster(topology, index, assignment)
            )
        case _:
            assert_never(topology)


def size_bounds(topology: spec.Clusters, num_clients: int) -> tuple[int, int]:
    """c2 and c3: as given, else the defaults."""
    low, high = default_bounds(num_clients, topology.num_clusters)
    return (
        low if topology.min_size is None else topology.min_size,
        high if topology.max_size is None else topology.max_size,
    )


def check_sizes(topology: spec.Clusters, num_clients: int) -> None:
    """Refuse clusters that so many clients cannot make."""
    max_memberships = topology.max_memberships if topology.assignment == "knot" else 1
    check_bounds(num_clients, topology.num_clusters, *size_bounds(topology, num_clients), max_memberships)


def build_tree(topology: spec.Tree, clients: Sequence[str], *, prefix: str = "") -> Node:
    """The influence tree that the parameters ask for."""
    return influence_tree.build(
        topology.shape,
        clients,
        probabilities=erasure_probabilities(topology, clients),
        branching=topology.branching,
        expiry=topology.expiry,
        prefix=prefix,
    )


def erasure_probabilities(topology: spec.Tree, clients: Sequence[str]) -> dict[str, float] | None:
    """The given probabilities; clients not named share what is missing to 1. None: nobody is named, all are equal."""
    named = {name: topology.probabilities[name] for name in clients if name in topology.probabilities}
    if not named:
        return None
    missing = max(0.0, 1.0 - sum(named.values()))
    return {name: named.get(name, missing / max(1, len(clients) - len(named))) for name in clients}


def cluster_name(index: int) -> str:
    return f"cluster-{index}"


def cluster_index(name: str) -> int:
    return int(name.removeprefix("cluster-"))


def plans_of(tree: Node) -> tuple[CohortPlan, ...]:
    group = tree.name.removesuffix(influence_tree.ROOT).rstrip("/") or influence_tree.ROOT
    parents = {child.name: node.name for node in influence_tree.walk(tree) for child in node.children}
    return tuple(
        CohortPlan(node.name, node.members, parents.get(node.name), _kind(node, tree), group)
        for node in influence_tree.walk(tree)
    )


def _draw_clusters(topology: spec.Clusters, names: Sequence[str], seed: int) -> dict[str, tuple[int, ...]]:
    if topology.assignment != "random":
        raise InvariantBroken(f"{topology.assignment} clusters are made from a profiling round")
    drawn = random_assignment(names, topology.num_clusters, seed, *size_bounds(topology, len(names)))
    return dict(zip(names, drawn, strict=True))


def _cluster(topology: spec.Clusters, index: int, assignment: Mapping[str, Sequence[int]]) -> tuple[CohortPlan, ...]:
    name = cluster_name(index)
    members = tuple(sorted(client for client, indices in assignment.items() if index in indices))
    if not members:
        return ()
    match topology.inside:
        case spec.Flat():
            return (CohortPlan(name, members, None, "line", name),)
        case spec.Tree():
            return plans_of(build_tree(topology.inside, members, prefix=f"{name}/"))
        case _:
            assert_never(topology.inside)


def _kind(node: Node, tree: Node) -> CohortKind:
    if node.name == tree.name:
        return "root"
    return "inner" if node.children else "leaf"
