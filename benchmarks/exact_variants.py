"""The variants of `lethe bench exact` in families: what differs from the main experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from benchmarks.exact_setups import DATASETS
from services.data.spoilt import Spoilt

NUM_CLIENTS: Final = 10
LEAVERS: Final = ("client-1", "client-3", "client-5")
PROBABILITIES: Final = {f"client-{number}": (6.0 if number < 3 else 1.0) / 25 for number in range(NUM_CLIENTS)}
"""To leave, where they differ. Of powers of two Huffman and Shannon-Fano would make the same tree."""
EXPIRY: Final = {name: float(turn) for turn, name in enumerate(LEAVERS)}
MAIN_METHODS: Final = ("retrain", "bmt", "mmt")
BASELINES: Final = ("fedcio", "fats", "exact_fun", "sisa", "standalone")
IMAGES: Final = ("mnist", "fashion-mnist", "digits")


@dataclass(frozen=True)
class Variant:
    """What differs from the main experiment; `methods` those that it is about."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the data set's set-up."""
    local: Mapping[str, Any] = field(default_factory=dict)
    topology: Mapping[str, Any] = field(default_factory=dict)
    """Of mmt's tree."""
    spoilt: Spoilt | None = None
    """What is wrong with the samples of the first to leave."""
    leavers_drawn: bool = False
    """By their probabilities, instead of the paper's three."""
    methods: Sequence[str] = MAIN_METHODS
    order: str = "UUU"
    """U: the next leaver is erased; N: a new client joins."""
    datasets: Sequence[str] = ("mnist", "digits")
    until_back: Sequence[str] = ("small",)
    """Presets that play the first erasure only, until the threshold is back."""


@dataclass(frozen=True)
class Family:
    """Variants by their value of the swept parameter, or by their name where nothing is swept."""

    about: str
    variants: Mapping[str, Variant]
    parameter: str | None = None
    main_value: str | None = None
    """Of the parameter in the main experiment, if that belongs to the sweep."""


def _of_trees(**topology: Any) -> Variant:
    return Variant(topology=topology, methods=("mmt",))


def _likely(**topology: Any) -> Variant:
    return Variant(topology=topology, methods=("mmt",), leavers_drawn=True)


FAMILIES: Final[Mapping[str, Family]] = {
    "main": Family(
        "One client is erased; simulated until the threshold is back.",
        {"main": Variant(order="U", datasets=tuple(DATASETS), until_back=("small", "full"))},
    ),
    "sequential": Family(
        "Clients 1, 3 and 5 are erased in turn, with training in between (the paper's Fig. 1).",
        {"UUU": Variant(datasets=(*IMAGES, "cifar10"), until_back=())},
    ),
    "join-leave": Family(
        "Clients are erased (U) and new ones join (N), each ten rounds after an erasure (the paper's Fig. 2).",
        {
            "2U1N": Variant(order="UNU", until_back=()),
            "2U2N": Variant(order="UNUN", until_back=()),
            "3U2N": Variant(order="UNUNU", until_back=()),
        },
    ),
    "baselines": Family(
        "The other exact methods. `fedcio`: three clusters by the clients' first updates, judged when they are merged. "
        "`fats`: a client is drawn so rarely that it may leave without a trace. `exact_fun`: rounded models, trained "
        "again from the first round that the leaver changed. `sisa`: every client trains alone; judged is the mean "
        "softmax of the models of all that are left. `standalone`: no federation, one model trained on the pooled "
        "samples of all that are left, from the beginning; a round is as many steps as one client takes in a round.",
        {"baselines": Variant(methods=BASELINES, order="U", datasets=IMAGES, until_back=("small", "full"))},
    ),
    "spoilt": Family(
        "The client that is erased had spoilt samples (the paper's Fig. 7): noisy, its inputs were shuffled values "
        "that say nothing about the labels; adversarial, each of its labels was the next class.",
        {how: Variant(spoilt=how, order="U", until_back=()) for how in get_args(Spoilt)},
    ),
    "rho": Family(
        "How alike the clients are: ρ is the number of samples of a minority class over that of the client's own; 1 is "
        "identical distributions (the paper's Fig. 8).",
        {str(rho): Variant(changes={"rho": rho}) for rho in (0.1, 0.5, 1.0)},
        "ρ",
        "0.02",
    ),
    "rate": Family(
        "Learning rates (the paper's Fig. 6).",
        {str(rate): Variant(local={"learning_rate": rate}) for rate in (0.001, 0.05)},
        "learning rate",
        "0.01",
    ),
    "weight-decay": Family(
        "The paper prints a weight decay of 0.1.",
        {"0.1": Variant(local={"weight_decay": 0.1}, datasets=IMAGES)},
        "weight decay",
        "0",
    ),
    "branching": Family(
        "Children of each node of the influence tree (the paper's Fig. 3a).",
        {str(children): _of_trees(shape="n_ary", branching=children) for children in (3, 5)},
        "children of a node",
        "2",
    ),
    "expiry": Family(
        "It is known who leaves first, and the tree has those nearest to its root (the paper's Fig. 3b).",
        {"known": _of_trees(shape="by_expiry", expiry=EXPIRY)},
        "influence tree",
        "huffman",
    ),
    "probable": Family(
        "Clients differ in how likely they are to leave (three of them are six times as likely as the others), and the "
        "leavers are drawn by it: what the tree gains from knowing (the paper's Fig. 3c).",
        {
            "uniform": _likely(shape="huffman"),
            "shannon_fano": _likely(shape="shannon_fano", probabilities=PROBABILITIES),
            "huffman": _likely(shape="huffman", probabilities=PROBABILITIES),
        },
        "influence tree",
    ),
}


@dataclass(frozen=True)
class Named:
    """Where a variant belongs."""

    family: str
    value: str
    variant: Variant


NAMED: Final[Mapping[str, Named]] = {
    f"{family}-{value}" if found.parameter else value: Named(family, value, variant)
    for family, found in FAMILIES.items()
    for value, variant in found.variants.items()
}


def chosen(names: Sequence[str]) -> list[str]:
    """The variants meant by names of variants, of families, or `all`. Raises ValueError for a name of nothing."""
    if unknown := sorted(set(names) - {"all", *FAMILIES, *NAMED}):
        raise ValueError(f"there is no variant {', '.join(unknown)}; there are {', '.join(('all', *FAMILIES, *NAMED))}")
    return [name for name, named in NAMED.items() if {"all", named.family, name} & set(names)]
