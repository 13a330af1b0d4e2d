import pytest

from services.core.errors import Rejected
from services.topology import influence_tree
from services.topology.influence_tree import Node, bi_model, build, depth, erase, ids, join, paths, walk


def shape_of(node: Node) -> object:
    """The tree with client names alone."""
    return node.members[0] if not node.children else tuple(shape_of(child) for child in node.children)


def name_of(tree: Node, *members: str) -> str:
    return next(node.name for node in walk(tree) if node.members == members)


def test_huffman_puts_the_likely_leaver_near_the_root() -> None:
    tree = build("huffman", "abcd", probabilities={"a": 0.1, "b": 0.1, "c": 0.2, "d": 0.6})
    assert {client: len(path) - 1 for client, path in paths(tree).items()} == {"a": 3, "b": 3, "c": 2, "d": 1}


def test_huffman_without_probabilities_is_as_shallow_as_can_be() -> None:
    assert depth(build("huffman", [f"c{i}" for i in range(16)])) == 4


def test_huffman_does_not_depend_on_the_order_of_the_clients() -> None:
    assert build("huffman", "dbca") == build("huffman", "abcd")


def test_shannon_fano_splits_where_the_halves_weigh_the_same() -> None:
    tree = build("shannon_fano", "abcd", probabilities={"a": 0.1, "b": 0.1, "c": 0.3, "d": 0.5})
    assert shape_of(tree) == ("d", ("c", ("a", "b")))


def test_balanced_halves_the_names() -> None:
    assert shape_of(build("balanced", "abcde")) == ((("a", "b"), "c"), ("d", "e"))


@pytest.mark.parametrize("num_clients", range(2, 20))
@pytest.mark.parametrize("branching", [2, 3, 5])
def test_n_ary_fills_every_node_but_one(num_clients: int, branching: int) -> None:
    tree = build("n_ary", [f"c{i:02}" for i in range(num_clients)], branching=branching)
    widths = [len(node.children) for node in walk(tree) if node.children]
    assert max(widths) <= branching
    assert sum(width < branching for width in widths) <= 1
    assert min(widths) >= 2


def test_by_expiry_is_a_chain_in_the_order_of_leaving() -> None:
    assert shape_of(build("by_expiry", "abcd", expiry={"a": 9, "b": 1, "c": 5, "d": 7})) == ("b", ("c", ("d", "a")))


def test_clients_that_never_expire_are_at_the_end_of_the_chain() -> None:
    assert shape_of(build("by_expiry", "abcd", expiry={"c": 5})) == ("c", (("a", "b"), "d"))


@pytest.mark.parametrize("shape", ["huffman", "shannon_fano", "balanced", "n_ary", "by_expiry"])
def test_a_single_client_has_a_root_and_a_leaf(shape: influence_tree.Shape) -> None:
    assert build(shape, ["a"]) == Node("root", ("a",), (Node("leaf:a", ("a",)),))


def test_a_chain_of_a_thousand_clients_can_be_built_and_cut() -> None:
    clients = [f"c{i:04}" for i in range(1000)]
    tree = build("by_expiry", clients, expiry={client: i for i, client in enumerate(clients)})
    assert depth(tree) == 999
    after = erase(tree, ["c0500"]).tree
    assert after is not None and len(after.members) == 999


def test_probabilities_must_be_given_for_all_and_not_negative() -> None:
    with pytest.raises(Rejected, match="for b"):
        build("huffman", "ab", probabilities={"a": 1.0})
    with pytest.raises(Rejected, match=r"-0\.5"):
        build("huffman", "ab", probabilities={"a": 1.0, "b": -0.5})


def test_ids_counts_the_models_merged() -> None:
    uniform = dict.fromkeys("abcd", 0.25)
    assert ids(build("balanced", "abcd"), uniform) == 2.0
    assert ids(bi_model("abcd"), uniform) == 3.0


def test_erasing_a_leaf_lifts_its_sibling_and_averages_the_rest() -> None:
    tree = build("balanced", "abcdefgh")
    erased = erase(tree, ["a"])
    ab, cd, abcd = name_of(tree, "a", "b"), name_of(tree, "c", "d"), name_of(tree, "a", "b", "c", "d")
    efgh = name_of(tree, "e", "f", "g", "h")
    assert set(erased.retired) == {"leaf:a", ab}
    assert erased.replaced == (("leaf:b", ab),)
    assert erased.reinitialised == ((abcd, ("leaf:b", cd)), ("root", ("leaf:b", cd, efgh)))
    assert erased.tree is not None
    assert shape_of(erased.tree) == (("b", ("c", "d")), (("e", "f"), ("g", "h")))


def test_the_root_keeps_its_name_and_takes_over_its_only_child() -> None:
    tree = build("by_expiry", "abc", expiry={"a": 1, "b": 2, "c": 3})
    erased = erase(tree, ["a"])
    bc = name_of(tree, "b", "c")
    assert erased.reinitialised == (("root", (bc,)),)
    assert erased.replaced == ((bc, "root"),)
    assert set(erased.retired) == {"leaf:a", bc}
    assert erased.tree == bi_model("bc")


def test_a_node_that_the_root_takes_over_is_not_averaged_first() -> None:
    tree = build("balanced", "abcdefgh")
    erased = erase(tree, ["a", "e", "f", "g", "h"])
    cd = name_of(tree, "c", "d")
    assert erased.reinitialised == (("root", ("leaf:b", cd)),)
    assert erased.tree is not None
    assert shape_of(erased.tree) == ("b", ("c", "d"))
    assert name_of(tree, "a", "b", "c", "d") in erased.retired


def test_in_a_bi_model_the_local_models_of_the_others_make_the_new_global_one() -> None:
    erased = erase(bi_model("abc"), ["b"])
    assert erased.reinitialised == (("root", ("leaf:a", "leaf:c")),)
    assert erased.retired == ("leaf:b",)
    assert erased.tree == bi_model("ac")


def test_the_last_client_keeps_a_root_and_a_leaf() -> None:
    erased = erase(bi_model("ab"), ["b"])
    assert erased.tree == bi_model("a")
    assert erased.reinitialised == (("root", ("leaf:a",)),)


def test_when_all_leave_nothing_is_left() -> None:
    tree = build("balanced", "abcd")
    erased = erase(tree, "abcd")
    assert erased.tree is None
    assert erased.reinitialised == ()
    assert set(erased.retired) == {node.name for node in walk(tree)}


def test_a_stranger_cannot_be_erased() -> None:
    with pytest.raises(Rejected, match="zoe"):
        erase(bi_model("ab"), ["zoe"])


def test_a_newcomer_is_paired_with_the_shallowest_least_probable_leaf() -> None:
    tree = build("balanced", "abcde")  # c, d and e are two steps below the root
    grown, grafted = join(tree, "new", {"a": 0.0, "b": 0.0, "c": 0.3, "d": 0.2, "e": 0.4})
    assert shape_of(grown) == ((("a", "b"), "c"), (("d", "new"), "e"))
    assert grafted == (name_of(grown, "d", "new"), "leaf:new")
    assert {node.name for node in walk(tree)} | set(grafted) == {node.name for node in walk(grown)}


def test_a_newcomer_to_a_lone_client_becomes_its_sibling() -> None:
    assert join(bi_model("a"), "b") == (bi_model("ab"), ("leaf:b",))


def test_nobody_joins_twice() -> None:
    with pytest.raises(Rejected, match="already"):
        join(bi_model("ab"), "b")


def test_a_name_is_never_given_twice() -> None:
    tree = bi_model("ab")
    _, (first, _) = join(tree, "c")
    _, (second, _) = join(tree, "c", taken={first})
    assert first != second


def test_names_inside_a_cluster_carry_its_prefix() -> None:
    tree = build("balanced", "abcd", prefix="cluster-1/")
    grown, grafted = join(tree, "e")
    assert all(node.name.startswith("cluster-1/") for node in walk(grown))
    assert grown.name == "cluster-1/root"
    assert grafted[-1] == "cluster-1/leaf:e"
