"""Scenarios of `lethe bench exact`: clients leave a federation one after the other, and their influence goes at once.

The set-up of the paper on bi-models and influence trees ("Achieving exact federated unlearning with improved
post-unlearning performance", Table 1 and Fig. 1-3, 6-8): ten clients, client i holds mostly class i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from benchmarks.experiments import Cell
from lethe.simulation import Progress
from services.core.seeds import derive

NUM_CLIENTS: Final = 10
LEAVERS: Final = ("client-1", "client-3", "client-5")
MORE_ROUNDS: Final = 100
"""That the small preset may train after its only erasure; it ends as soon as the threshold is reached."""
JOINED_AFTER: Final = 10
"""Rounds after an erasure at which a newcomer joins."""
FIGURES: Final[Mapping[str, Any]] = {"epochs": 1, "batch_size": 20, "learning_rate": 0.01, "clip_norm": 10.0}


@dataclass(frozen=True)
class Setup:
    """A data set with the paper's settings for it. `paper`: rounds to the threshold after the first erasure."""

    source: str
    model: Mapping[str, Any]
    threshold: float
    paper: Mapping[str, int]
    local: Mapping[str, Any] = field(default_factory=lambda: FIGURES)
    samples: int = 200
    rho: float = 0.02
    rounds: int = 100
    test_samples: int = 2000


def _mlp(side: int) -> dict[str, Any]:
    return {"name": "mlp", "params": {"input_shape": [side, side], "num_classes": 10, "hidden": [80]}}


DATASETS: Final[Mapping[str, Setup]] = {
    "mnist": Setup("mnist", _mlp(28), 0.75, {"retrain": 51, "bmt": 34, "mmt": 16}),
    "fashion-mnist": Setup("fashion-mnist", _mlp(28), 0.65, {"retrain": 26, "bmt": 16, "mmt": 3}),
    "cifar10": Setup(
        "cifar10",
        {"name": "cnn", "params": {"input_shape": [3, 32, 32], "num_classes": 10}},
        0.45,
        {"retrain": 162, "bmt": 3, "mmt": 3},
        local={"epochs": 1, "batch_size": 64, "optimizer": "adamw", "learning_rate": 0.001},
        samples=1000,
        rho=0.2,
        rounds=300,
    ),
    "digits": Setup(
        "digits", _mlp(8), 0.5, {}, local={"epochs": 1, "batch_size": 20, "learning_rate": 0.1}, samples=100, rounds=20
    ),
}

METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "retrain": {},
    "bmt": {"topology": {"kind": "bi_model"}},
    "mmt": {"topology": {"kind": "tree", "shape": "huffman"}},
    "fedcio": {"topology": {"kind": "clusters", "num_clusters": 3, "assignment": "spectral"}},
    "fats": {"training": {"algorithm": "fats"}},
    "exact_fun": {"training": {"algorithm": "exact_fun"}, "retention": {"updates": "all"}},
}
"""What each method changes in the run."""
SERVED: Final = ("merged", "root", "all")
"""The cohort whose model stands for the run: the first of these that there is."""
MAIN_METHODS: Final = ("retrain", "bmt", "mmt")
BASELINES: Final = ("fedcio", "fats", "exact_fun")


@dataclass(frozen=True)
class Variant:
    """What differs from the main experiment; `methods` those that it is about."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    topology: Mapping[str, Any] = field(default_factory=dict)
    """Of mmt's tree."""
    methods: Sequence[str] = MAIN_METHODS
    order: str = "UUU"
    """U: the next leaver is erased; N: a new client joins."""
    datasets: Sequence[str] = ("mnist", "digits")
    until_threshold: bool = False


def _declining(number: int) -> float:
    """How likely client `number` is to leave; the first is the most restless."""
    return float(2.0 ** -(number + 1))


PROBABILITIES: Final = {f"client-{number}": _declining(number) for number in range(NUM_CLIENTS)}
EXPIRY: Final = {name: float(turn) for turn, name in enumerate(LEAVERS)}

SMALL: Final = {
    "main": Variant(order="U", datasets=("mnist", "fashion-mnist", "digits"), until_threshold=True),
}
FULL: Final = {
    "main": Variant(datasets=("mnist", "fashion-mnist", "cifar10", "digits")),
    "baselines": Variant(methods=BASELINES, order="U", datasets=("mnist", "fashion-mnist", "digits")),
    "weight-decay-0.1": Variant(local={"weight_decay": 0.1}, datasets=("mnist", "fashion-mnist", "digits")),
    "2U1N": Variant(order="UNU"),
    "2U2N": Variant(order="UNUN"),
    "3U2N": Variant(order="UNUNU"),
    **{f"branching-{b}": Variant(topology={"shape": "n_ary", "branching": b}, methods=("mmt",)) for b in (2, 3, 5)},
    "known-expiry": Variant(topology={"shape": "by_expiry", "expiry": EXPIRY}, methods=("mmt",)),
    **{
        f"probable-{shape}": Variant(topology={"shape": shape, "probabilities": PROBABILITIES}, methods=("mmt",))
        for shape in ("huffman", "shannon_fano")
    },
    "probable-unknown": Variant(methods=("mmt",)),
    **{f"rate-{rate}": Variant(local={"learning_rate": rate}) for rate in (0.001, 0.05)},
    **{f"rho-{rho}": Variant(changes={"rho": rho}) for rho in (0.1, 0.5, 1.0)},
}
PRESETS: Final[Mapping[str, Mapping[str, Variant]]] = {"small": SMALL, "full": FULL}


@dataclass
class IsBack:
    """Whether the served model has the threshold's accuracy in a round after the erasure."""

    threshold: float
    fenced_s: float = 0.0

    def __call__(self, progress: Progress) -> bool:
        if progress.cohort not in SERVED:
            return False
        if progress.epoch == 0:
            self.fenced_s = progress.virtual_s
            return False
        # At the fence's own instant it was made of others' models, and has not been trained yet.
        return progress.virtual_s > self.fenced_s and (progress.accuracy or 0.0) >= self.threshold


def cell(dataset: str, method: str, seed: int, name: str, variant: Variant, rounds: int | None) -> Cell:
    setup = replace(DATASETS[dataset], **variant.changes)
    rounds = rounds or setup.rounds
    run: dict[str, Any] = {
        "model": dict(setup.model),
        "local": {**setup.local, **variant.local},
        "stop": {"rounds": rounds + MORE_ROUNDS if variant.until_threshold else rounds},
        "retention": {"updates": "none"},
        "validation": {"parts": False},
        **METHODS[method],
    }
    if method == "mmt" and variant.topology:
        run["topology"] = {"kind": "tree", **variant.topology}
    scenario: dict[str, Any] = {
        "seed": seed,
        "run": run,
        "data": {
            "source": setup.source,
            "partition": f"by-class:{1 / (1 + (NUM_CLIENTS - 1) * setup.rho):.6f}",
            "samples_per_client": setup.samples,
            "test_samples": setup.test_samples,
        },
        "clients": NUM_CLIENTS,
        "training": {"path": "stacked"},
        "script": _script(method, variant, _leavers(name, seed), rounds),
    }
    watch = IsBack(setup.threshold) if variant.until_threshold else None
    return Cell(dataset, method, seed, name, scenario, watch)


def _script(method: str, variant: Variant, leavers: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Erasures when training has ended, which begins it anew; newcomers some rounds into the next stretch."""
    restarts = method not in ("bmt", "mmt")
    way = "retrain" if restarts else "reinit"
    if variant.until_threshold:  # in the middle of a longer run, so that retraining may take longer than training did
        return [{"after_round": rounds, "erase": [leavers[0]], "method": way}]
    events: list[dict[str, Any]] = []
    for place, letter in enumerate(variant.order):
        erased = variant.order[:place].count("U")
        if letter == "U":
            leaver = leavers[erased]
            events.append({"when": "finished", "erase": [leaver], "method": way, "recovery_rounds": rounds})
        else:
            moment = erased * rounds + min(JOINED_AFTER, rounds // 2)
            # A line that begins again counts its rounds from 1; each of them takes a second.
            events.append({"at_s": float(moment), "join": 1} if restarts else {"after_round": moment, "join": 1})
    return events


def _leavers(variant: str, seed: int) -> list[str]:
    """The paper's; where they differ in probability, drawn by it."""
    if not variant.startswith("probable"):
        return list(LEAVERS)
    weights = np.array(list(PROBABILITIES.values()))
    drawn = np.random.default_rng(derive(seed, "leavers")).choice(
        NUM_CLIENTS, len(LEAVERS), replace=False, p=weights / weights.sum()
    )
    return [f"client-{number}" for number in drawn]
