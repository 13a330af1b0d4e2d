"""Scenarios of `lethe bench selection`: a hundred clients train, one of them is erased by FedEraser, and a selection
policy draws who calibrates each stored round.

The set-up of "Incentive and dynamic client selection for federated unlearning" (section 6.2): four fifths of a client's
samples are of one class, ten clients are asked in a round, and calibration takes half the epochs of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lethe.simulation.scenario import client_name
from services.core import digests
from services.core.seeds import derive
from services.selection.lots import by_lot
from services.topology.cohorts import FLAT

NUM_CLIENTS: Final = 100
NUM_ASKED: Final = 10
VALIDATION_SAMPLES: Final = 1000
"""Of the test part of a data set; models are judged on the others."""
POLICIES: Final = ("uniform", "round_robin", "k_center", "clusters", "dqn", "dqn-paper")
LEARNING: Final = {"dqn": "shared", "dqn-paper": "paper"}
FIRST_PRETRAINING_SEED: Final = 1000


@dataclass(frozen=True)
class Setup:
    source: str
    model: Mapping[str, Any]
    target: float
    """The accuracy that a reward of zero stands for."""


@dataclass(frozen=True)
class Preset:
    datasets: tuple[str, ...]
    policies: tuple[str, ...]
    rounds: int
    samples: int
    epochs: int
    learning_rate: float
    batch_size: int
    episodes: int
    """Of pre-training."""
    pretraining_rounds: int


def _mlp(input_shape: list[int], hidden: int) -> dict[str, Any]:
    return {"name": "mlp", "params": {"input_shape": input_shape, "num_classes": 10, "hidden": [hidden]}}


DATASETS: Final[Mapping[str, Setup]] = {
    "mnist": Setup("mnist", _mlp([28, 28], 64), 0.9),
    "fashion-mnist": Setup("fashion-mnist", _mlp([28, 28], 64), 0.8),
    "cifar10": Setup("cifar10", _mlp([3, 32, 32], 64), 0.5),
    "digits": Setup("digits", _mlp([8, 8], 16), 0.9),
}
PRESETS: Final = {
    "small": Preset(
        ("mnist", "fashion-mnist"), POLICIES[:5], 20, samples=150, epochs=4, learning_rate=0.05, batch_size=32,
        episodes=6, pretraining_rounds=20,
    ),
    "full": Preset(
        ("mnist", "fashion-mnist", "cifar10"), POLICIES, 40, samples=600, epochs=10, learning_rate=0.005, batch_size=64,
        episodes=100, pretraining_rounds=40,
    ),
}  # fmt: skip


def scenario_of(dataset: str, policy: str, seed: int, preset: Preset, network: Path | None) -> dict[str, Any]:
    """Train by lot, then erase one client; who calibrates is drawn by the policy. All policies of a seed start from the
    same model and the same history."""
    selection: dict[str, Any] = {"policy": policy}
    if policy in LEARNING:
        selection = _learning(dataset, policy)
        if network is not None:
            selection["state"] = digests.of_bytes(network.read_bytes())
    erasure = {
        "when": "finished",
        "erase": [leaver(seed)],
        "method": "federaser",
        "guarantee": "approximate",
        "params": {"participants": "policy", "selection": selection},
    }
    base = _base(dataset, seed, preset)
    base["run"] |= {"stop": {"rounds": preset.rounds}, "validation": {"every": preset.rounds}}
    return base | {"uploads": [] if network is None else [str(network)], "script": [erasure]}


def pretraining_of(dataset: str, policy: str, preset: Preset) -> dict[str, Any]:
    """An episode: clients that the policy selects train for as many epochs as they calibrate for."""
    base = _base(dataset, FIRST_PRETRAINING_SEED, preset)
    base["run"]["local"]["epochs"] = calibration_epochs(preset)
    base["run"] |= {"stop": {"rounds": preset.pretraining_rounds}, "selection": _learning(dataset, policy)}
    clients = NUM_CLIENTS - 1 if policy == "dqn-paper" else NUM_CLIENTS  # an output for each of those who will remain
    return base | {"clients": clients}


def calibration_epochs(preset: Preset) -> int:
    return -(-preset.epochs // 2)


def leaver(seed: int) -> str:
    """One who takes part in the second round."""
    names = [client_name(number) for number in range(NUM_CLIENTS)]
    return by_lot(names, NUM_ASKED, derive(seed, "selection", FLAT), 2)[0]


def _learning(dataset: str, policy: str) -> dict[str, Any]:
    return {"policy": "dqn", "preset": LEARNING[policy], "target_accuracy": DATASETS[dataset].target}


def _base(dataset: str, seed: int, preset: Preset) -> dict[str, Any]:
    setup = DATASETS[dataset]
    return {
        "seed": seed,
        "clients": NUM_CLIENTS,
        "data": {
            "source": setup.source,
            "partition": "by-class:0.8",
            "samples_per_client": preset.samples,
            "test_samples": VALIDATION_SAMPLES,
        },
        "training": {"path": "stacked", "group_size": NUM_ASKED},
        "run": {
            "model": dict(setup.model),
            "local": {
                "epochs": preset.epochs,
                "batch_size": preset.batch_size,
                "learning_rate": preset.learning_rate,
            },
            "training": {"algorithm": "fedavg", "clients_per_round": NUM_ASKED},
        },
    }
