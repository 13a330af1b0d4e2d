"""Scenarios of `lethe bench knot`: clients of very different speed, and some of them are erased in the middle.

The set-up of the KNOT paper ("Asynchronous federated unlearning", Fig. 4-6, Tables I and II): clusters of clients that
train asynchronously, against asynchronous and synchronous training of everybody together, each with retraining.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.experiments import Cell
from services.simulation.durations import Pareto, draw

NUM_CLUSTERS: Final = 5
DURATIONS: Final = Pareto(alpha=1.0, scale_s=1.0, at_most_s=60.0)
STEPS_AT_MOST: Final = 1000
TEST_SAMPLES: Final = 1000


@dataclass(frozen=True)
class Setup:
    """A data set with its model, the accuracy to reach, and when clients are erased."""

    source: str
    partition: str
    model: Mapping[str, Any]
    target: float
    erased_at_s: float
    samples: int = 300
    clients: int = 100
    asked: int = 30
    buffered: int = 15
    local: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 1, "batch_size": 20, "learning_rate": 0.1})


def _lenet(side: int = 28) -> dict[str, Any]:
    return {"name": "lenet5", "params": {"input_shape": [side, side], "num_classes": 10}}


DATASETS: Final[Mapping[str, Setup]] = {
    "mnist": Setup("mnist", "dirichlet:5", _lenet(), 0.90, 20.0),
    "mnist-writers": Setup("mnist", "writer:mnist_writers.npz", _lenet(), 0.90, 20.0),
    "fashion-mnist": Setup("fashion-mnist", "dirichlet:5", _lenet(), 0.70, 20.0),
    "cifar10": Setup(
        "cifar10",
        "dirichlet:5",
        {"name": "cnn", "params": {"input_shape": [3, 32, 32], "num_classes": 10}},
        0.45,
        60.0,
        asked=20,
    ),
    "location30": Setup(
        "npz:location30.npz",
        "dirichlet:5",
        {"name": "mlp", "params": {"input_shape": [446], "num_classes": 30, "hidden": [128]}},
        0.5,
        60.0,
        asked=60,
        buffered=30,
    ),
    "digits": Setup(
        "digits",
        "iid",
        {"name": "mlp", "params": {"input_shape": [8, 8], "num_classes": 10}},
        0.6,
        6.0,
        clients=40,
        asked=20,
        buffered=10,
    ),
}
METHODS: Final = ("fedavg", "fedbuff", "random", "knot", "rapid", "federaser")


@dataclass(frozen=True)
class Preset:
    datasets: Sequence[str]
    methods: Sequence[str]
    erased: Sequence[int]
    share: float
    """Of the clients, of those who train at a time, and of the buffer."""


PRESETS: Final = {
    "small": Preset(("mnist", "mnist-writers", "fashion-mnist"), METHODS[:4], (1,), 0.5),
    "full": Preset(("mnist", "mnist-writers", "fashion-mnist", "cifar10", "location30"), METHODS, (1, 2, 4), 1.0),
}


def setup_of(dataset: str, share: float) -> Setup:
    whole = DATASETS[dataset]
    return replace(
        whole,
        clients=round(whole.clients * share),
        asked=round(whole.asked * share),
        buffered=round(whole.buffered * share),
    )


def cell(dataset: str, method: str, seed: int, num_erased: int, share: float) -> Cell:
    setup = setup_of(dataset, share)
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
        "erase": leavers(setup, seed, num_erased),
        "method": method if method in ("rapid", "federaser") else "retrain",
    }
    if method == "federaser":
        event["guarantee"] = "approximate"
    scenario = {
        "seed": seed,
        "run": run,
        "data": {
            "source": setup.source,
            "partition": setup.partition,
            "samples_per_client": setup.samples,
            "test_samples": TEST_SAMPLES,
        },
        "clients": setup.clients,
        "durations": DURATIONS.model_dump(),
        "script": [event],
        "stop": {"accuracy": setup.target, "of": "best"},
    }
    return Cell(dataset, method, seed, f"{num_erased} erased", scenario)


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
