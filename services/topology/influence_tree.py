"""Influence trees: nested cohorts whose surviving parts make a new global model at once (multi-models training, MMT).

The root trains with everybody, each leaf with one client alone, an inner node with the clients below it: a laminar
family, so the largest subtrees without a leaver share no client and together hold all that remain. Node names are given
once and kept: whatever happens elsewhere in the tree, a node's name stays.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, assert_never

from services.core.errors import InvariantBroken, Rejected

Shape = Literal["huffman", "shannon_fano", "balanced", "n_ary", "by_expiry"]

ROOT: Final = "root"
LEAF_PREFIX: Final = "leaf:"
INNER_PREFIX: Final = "node:"


@dataclass(frozen=True)
class Node:
    """A cohort of the tree: `members` are client names, sorted; a leaf has one member and no children."""

    name: str
    members: tuple[str, ...]
    children: tuple[Node, ...] = ()


@dataclass(frozen=True)
class TreeErasure:
    """What an erasure does to a tree.

    First each node in `reinitialised` takes the sample-weighted mean of the named nodes, which held no leaver and lie
    inside it; nodes below come before those above. Then `retired` nodes end. `replaced` pairs a node with the place
    that it (or, for the root, its children) takes: its only surviving sibling has nothing left to average with.
    """

    retired: tuple[str, ...]
    reinitialised: tuple[tuple[str, tuple[str, ...]], ...]
    replaced: tuple[tuple[str, str], ...]
    tree: Node | None


def build(
    shape: Shape,
    clients: Sequence[str],
    *,
    probabilities: Mapping[str, float] | None = None,
    branching: int = 2,
    expiry: Mapping[str, Any] | None = None,
    prefix: str = "",
) -> Node:
    """`probabilities` (of erasure; need not sum to 1, uniform when absent) shape `huffman`, `shannon_fano` and `n_ary`.

    `expiry` says when clients leave, in any ordered values; who has none leaves last. `prefix` goes before every name,
    for trees inside a cluster.
    """
    names = _check_clients(clients)
    leaves = [leaf(name, prefix) for name in names]
    weights = _check_probabilities(names, probabilities)
    match shape:
        case "huffman":
            top = _huffman(leaves, weights, 2, prefix)
        case "n_ary":
            if branching < 2:
                raise Rejected("invalid-run", f"A tree needs a branching of at least 2, not {branching}.")
            top = _huffman(leaves, weights, branching, prefix)
        case "shannon_fano":
            top = _split(sorted(leaves, key=lambda node: -weights[node.members[0]]), weights, prefix)
        case "balanced":
            top = _split(leaves, None, prefix)
        case "by_expiry":
            top = _by_expiry(leaves, expiry or {}, prefix)
        case _:
            assert_never(shape)
    return _as_root(top, prefix)


def bi_model(clients: Sequence[str], *, prefix: str = "") -> Node:
    """BMT: a global model and one local model for each client."""
    names = _check_clients(clients)
    return Node(f"{prefix}{ROOT}", tuple(names), tuple(leaf(name, prefix) for name in names))


def leaf(client: str, prefix: str = "") -> Node:
    return Node(f"{prefix}{LEAF_PREFIX}{client}", (client,))


def walk(tree: Node) -> Iterator[Node]:
    """Every node, parents before children."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def paths(tree: Node) -> dict[str, tuple[str, ...]]:
    """For each client the names of the cohorts that it trains, from the root to its leaf."""
    found: dict[str, tuple[str, ...]] = {}
    stack: list[tuple[Node, tuple[str, ...]]] = [(tree, ())]
    while stack:
        node, above = stack.pop()
        if not node.children:
            found[node.members[0]] = (*above, node.name)
        stack.extend((child, (*above, node.name)) for child in node.children)
    return dict(sorted(found.items()))


def depth(tree: Node) -> int:
    """Edges on the longest path; a client trains at most depth + 1 models."""
    return max(len(path) for path in paths(tree).values()) - 1


def ids(tree: Node, probabilities: Mapping[str, float]) -> float:
    """The influence degradation score Σ_c p_c Σ_{a ancestor of c} (children(a) − 1): how many models are merged, on
    average, into the new global model when one client leaves."""
    inner = (node for node in walk(tree) if node.children)
    return math.fsum((len(node.children) - 1) * probabilities[c] for node in inner for c in node.members)


def erase(tree: Node, leavers: Collection[str]) -> TreeErasure:
    """Remove clients; several at once remove the union of their paths."""
    gone = frozenset(leavers)
    unknown = sorted(gone - set(tree.members))
    if unknown:
        raise Rejected("not-found", f"Not in this tree: {', '.join(unknown)}.")
    retired: list[str] = []
    reinitialised: list[tuple[str, tuple[str, ...]]] = []
    replaced: list[tuple[str, str]] = []
    after: dict[str, Node | None] = {}  # what takes each node's place
    survivors: dict[str, tuple[str, ...]] = {}  # the maximal clean subtrees inside each node
    for node in reversed(list(walk(tree))):
        if gone.isdisjoint(node.members):
            after[node.name], survivors[node.name] = node, (node.name,)
            continue
        children = tuple(child for old in node.children if (child := after[old.name]) is not None)
        survivors[node.name] = tuple(name for old in node.children for name in survivors[old.name])
        remaining = tuple(member for member in node.members if member not in gone)
        after[node.name] = replace(node, members=remaining, children=children)
        if not remaining:
            retired.append(node.name)
            after[node.name] = None
        elif len(children) == 1 and node is not tree:
            retired.append(node.name)
            replaced.append((children[0].name, node.name))
            after[node.name] = children[0]
        elif len(children) == 1 and children[0].children:
            # The root keeps its name, so the only child left gives it its children and ends.
            retired.append(children[0].name)
            replaced.append((children[0].name, node.name))
            reinitialised = [entry for entry in reinitialised if entry[0] != children[0].name]
            reinitialised.append((node.name, survivors[node.name]))
            after[node.name] = replace(node, members=remaining, children=children[0].children)
        else:
            reinitialised.append((node.name, survivors[node.name]))
    return TreeErasure(tuple(retired), tuple(reinitialised), tuple(replaced), after[tree.name])


def join(
    tree: Node, newcomer: str, probabilities: Mapping[str, float] | None = None, *, taken: Collection[str] = ()
) -> tuple[Node, tuple[str, ...]]:
    """Pair the newcomer with the shallowest, least probable leaf; returns the tree and the names of its new nodes.

    The nodes above gain a member. `taken` are names of retired nodes, which are never given again.
    """
    prefix = tree.name.removesuffix(ROOT)
    if newcomer in tree.members:
        raise Rejected("name-taken", f"{newcomer} is in this tree already.")
    if len(tree.children) < 2:
        return attach(tree, newcomer)
    weights = _check_probabilities(list(tree.members), probabilities)
    ways = paths(tree)
    partner = min(tree.members, key=lambda client: (len(ways[client]), weights[client], client))
    names = {node.name for node in walk(tree)} | set(taken)
    pair = _inner((leaf(partner, prefix), leaf(newcomer, prefix)), prefix, names)
    above = set(ways[partner][:-1])
    after: dict[str, Node] = {}
    for node in reversed(list(walk(tree))):
        if node.name == ways[partner][-1]:
            after[node.name] = pair
        elif node.name in above:
            children = tuple(after[child.name] for child in node.children)
            after[node.name] = Node(node.name, tuple(sorted((*node.members, newcomer))), children)
        else:
            after[node.name] = node
    return after[tree.name], (pair.name, leaf(newcomer, prefix).name)


def attach(tree: Node, newcomer: str) -> tuple[Node, tuple[str, ...]]:
    """Add the newcomer as a leaf below the root, as in a bi-model."""
    new = leaf(newcomer, tree.name.removesuffix(ROOT))
    return Node(tree.name, tuple(sorted((*tree.members, newcomer))), (*tree.children, new)), (new.name,)


def _check_clients(clients: Sequence[str]) -> list[str]:
    names = sorted(clients)
    if not names or len(set(names)) != len(names):
        raise InvariantBroken("a tree needs clients, each named once")
    return names


def _check_probabilities(names: Sequence[str], probabilities: Mapping[str, float] | None) -> dict[str, float]:
    if probabilities is None:
        return dict.fromkeys(names, 1.0)
    missing = [name for name in names if name not in probabilities]
    if missing:
        raise Rejected("invalid-run", f"No erasure probability is given for {', '.join(missing[:5])}.")
    bad = [name for name in names if not 0 <= probabilities[name] < math.inf]
    if bad:
        raise Rejected("invalid-run", f"The erasure probability of {bad[0]} is {probabilities[bad[0]]}, not 0 or more.")
    return {name: float(probabilities[name]) for name in names}


def _inner(children: tuple[Node, ...], prefix: str, taken: Collection[str] = ()) -> Node:
    members = tuple(sorted(member for child in children for member in child.members))
    for attempt in range(len(taken) + 1):
        text = "\x1f".join((*members, *([str(attempt)] if attempt else [])))
        name = f"{prefix}{INNER_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        if name not in taken:
            return Node(name, members, children)
    raise InvariantBroken("every name is taken")


def _as_root(top: Node, prefix: str) -> Node:
    return Node(f"{prefix}{ROOT}", top.members, top.children or (top,))


def _huffman(leaves: Sequence[Node], weights: Mapping[str, float], branching: int, prefix: str) -> Node:
    """Merge the `branching` least probable until one is left; ties go to the lower, then the first by name.

    The first merge takes fewer, such that every later one is full.
    """
    heap = [(weights[node.members[0]], 0, node.members[0], node) for node in leaves]
    heapq.heapify(heap)
    width = (len(heap) - 2) % (branching - 1) + 2
    while len(heap) > 1:
        masses, heights, _, children = zip(*(heapq.heappop(heap) for _ in range(width)), strict=True)
        node = _inner(children, prefix)
        heapq.heappush(heap, (math.fsum(masses), 1 + max(heights), node.members[0], node))
        width = branching
    return heap[0][3]


def _split(leaves: Sequence[Node], weights: Mapping[str, float] | None, prefix: str) -> Node:
    """Top-down: halves of equal weight as nearly as the order allows (of equal number without weights)."""
    if len(leaves) == 1:
        return leaves[0]
    cut = (len(leaves) + 1) // 2
    if weights is not None:
        each = [weights[node.members[0]] for node in leaves]
        cut = min(range(1, len(leaves)), key=lambda cut: abs(math.fsum(each[:cut]) - math.fsum(each[cut:])))
    return _inner((_split(leaves[:cut], weights, prefix), _split(leaves[cut:], weights, prefix)), prefix)


def _by_expiry(leaves: Sequence[Node], expiry: Mapping[str, Any], prefix: str) -> Node:
    """A chain with the soonest to leave on top; clients that stay share a balanced tree at its end."""
    leaving = sorted((node for node in leaves if node.members[0] in expiry), key=lambda node: expiry[node.members[0]])
    staying = [node for node in leaves if node.members[0] not in expiry]
    top = _split(staying, None, prefix) if staying else leaving.pop()
    for node in reversed(leaving):
        top = _inner((node, top), prefix)
    return top
