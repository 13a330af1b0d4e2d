"""Scenarios of `lethe bench knot`: clients of very different speed, and some of them are erased in the middle.

The set-up of the KNOT paper ("Asynchronous federated unlearning", Fig. 4-6, Tables I and II): clusters of clients that
train asynchronously, against asynchronous and synchronous training of everybody together, each with retraining.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from benchmarks.experiments import Cell
from services.simulation.durations import Pareto, draw

NUM_CLUSTERS: Final = 5
DURATIONS: Final = Pareto(alpha=1.0, scale_s=1.0, at_most_s=60.0)
STEPS_AT_MOST: Final = 100
SGD: Final = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1}
ADAM: Final = {"epochs": 1, "batch_size": 20, "optimizer": "adamw", "learning_rate": 0.0003}
BYTES: Final = 257
"""A text's tokens, and the padding."""


@dataclass(frozen=True)
class Setup:
    """A data set with its model, what is to be reached, and when clients are erased; the numbers are the paper's."""

    source: str
    partition: str
    model: Mapping[str, Any]
    target: float
    erased_at_s: float
    clients: int = 100
    asked: int = 30
    buffered: int = 15
    small: float = 0.5
    """The share of these that the preset small has."""
    samples: int = 300
    test_samples: int = 1000
    local: Mapping[str, Any] = field(default_factory=lambda: SGD)
    figure: Literal["accuracy", "perplexity"] = "accuracy"

    @property
    def stop(self) -> dict[str, Any]:
        return {"accuracy": self.target} if self.figure == "accuracy" else {"loss": math.log(self.target)}

    @property
    def goal(self) -> str:
        return f"{self.target:.0%} test accuracy" if self.figure == "accuracy" else f"a perplexity of {self.target:g}"


def _model(name: str, input_shape: Sequence[int], num_classes: int, **params: Any) -> dict[str, Any]:
    return {"name": name, "params": {"input_shape": list(input_shape), "num_classes": num_classes, **params}}


DATASETS: Final[Mapping[str, Setup]] = {
    "mnist": Setup("mnist", "dirichlet:5", _model("lenet5", [28, 28], 10), 0.90, 20.0),
    "mnist-writers": Setup(
        "mnist", "writer:mnist_writers.npz", _model("lenet5", [28, 28], 10), 0.90, 20.0, 250, 200, 150, small=0.2
    ),
    "fashion-mnist": Setup("fashion-mnist", "dirichlet:5", _model("lenet5", [28, 28], 10), 0.70, 20.0),
    "cifar10": Setup("cifar10", "dirichlet:5", _model("cnn", [3, 32, 32], 10), 0.35, 20.0, 100, 20, 15, local=ADAM),
    "cifar10-vgg16": Setup(
        "cifar10", "dirichlet:5", _model("vgg16", [3, 32, 32], 10), 0.75, 600.0, 100, 20, 15, local=ADAM
    ),
    "location30": Setup(
        "npz:location30.npz",
        "dirichlet:5",
        _model("mlp", [446], 30, hidden=[128]),
        0.50,
        30.0,
        100,
        60,
        30,
        local={**SGD, "learning_rate": 0.3},
    ),
    "tiny-shakespeare": Setup(
        "text:tinyshakespeare.txt?length=64",
        "iid",
        _model("gpt2", [64], BYTES, width=64, num_layers=2),
        20.0,
        12.0,
        70,
        50,
        25,
        samples=100,
        test_samples=100,
        local={**ADAM, "batch_size": 10, "learning_rate": 0.003},
        figure="perplexity",
    ),
    "digits": Setup("digits", "iid", _model("mlp", [8, 8], 10), 0.6, 6.0, 40, 20, 10),
}
METHODS: Final = ("fedavg", "fedbuff", "random", "knot", "rapid", "federaser")
VARIANTS: Final = {f"{num_erased} erased": num_erased for num_erased in (1, 2, 4)}


@dataclass(frozen=True)
class Preset:
    """What is run when nothing else is asked for."""

    datasets: Sequence[str]
    methods: Sequence[str]
    variants: Sequence[str]


PRESETS: Final = {
    "small": Preset(("mnist", "fashion-mnist"), METHODS[:4], ("1 erased",)),
    "full": Preset([name for name in DATASETS if name != "digits"], METHODS, list(VARIANTS)),
}


def setup_of(dataset: str, preset: str) -> Setup:
    whole = DATASETS[dataset]
    share = whole.small if preset == "small" else 1.0
    return replace(
        whole,
        clients=round(whole.clients * share),
        asked=round(whole.asked * share),
        buffered=round(whole.buffered * share),
    )


def cell(dataset: str, method: str, seed: int, variant: str, preset: str) -> Cell:
    setup = setup_of(dataset, preset)
    asynchronous = {"algorithm": "fedbuff", "buffer_size": setup.buffered, "concurrency": setup.asked}
    synchronous = {"algorithm": "fedavg", "clients_per_round": setup.asked}
    run: dict[str, Any] = {
        "model": dict(setup.model),
        "local": dict(setup.local),
        "training": synchronous if method == "fedavg" else asynchronous,
        "stop": {"rounds": STEPS_AT_MOST},
        "retention": {"updates": "all" if method == "federaser" else "none"},
    }
    if method in ("random", "knot"):
        run["topology"] = {"kind": "clusters", "num_clusters": NUM_CLUSTERS, "assignment": method}
    event: dict[str, Any] = {
        "at_s": setup.erased_at_s + profiling_s(setup, method, seed),
        "erase": leavers(setup, seed, VARIANTS[variant]),
        "method": method if method in ("rapid", "federaser") else "retrain",
    }
    if method == "federaser":
        event |= {"guarantee": "approximate", "fallback": "retrain"}  # where the leaver had contributed nothing yet
    scenario = {
        "seed": seed,
        "run": run,
        "data": {
            "source": setup.source,
            "partition": setup.partition,
            "samples_per_client": setup.samples,
            "test_samples": setup.test_samples,
        },
        "clients": setup.clients,
        "durations": DURATIONS.model_dump(),
        "script": [event],
        "stop": {**setup.stop, "of": "best"},
    }
    return Cell(dataset, method, seed, variant, scenario)


def profiling_s(setup: Setup, method: str, seed: int) -> float:
    """How long KNOT waits for everybody once before training begins; the erasure is filed so much later."""
    return max(_durations(setup, seed).values()) if method == "knot" else 0.0


def leavers(setup: Setup, seed: int, num_erased: int) -> list[str]:
    """Neither the fastest nor the slowest: spread evenly over the order of speed."""
    durations = _durations(setup, seed)
    by_speed = sorted(durations, key=lambda name: durations[name])
    return [by_speed[(number + 1) * len(by_speed) // (num_erased + 1)] for number in range(num_erased)]


def _durations(setup: Setup, seed: int) -> dict[str, float]:
    names = [f"client-{number}" for number in range(setup.clients)]
    return {name: draw(DURATIONS, seed, name, "") for name in names}
