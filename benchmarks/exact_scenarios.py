"""Scenarios of `lethe bench exact`: clients leave a federation one after the other, and their influence goes at once.

The set-up of the paper on bi-models and influence trees ("Achieving exact federated unlearning with improved
post-unlearning performance", Table 1 and Fig. 1-3, 6-8): ten clients, client i holds mostly class i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.exact_references import ENSEMBLE, play_ensemble, play_pooled
from benchmarks.exact_setups import DATASETS
from benchmarks.exact_variants import LEAVERS, NUM_CLIENTS, PROBABILITIES, Variant
from benchmarks.experiments import Cell, simulated
from lethe.simulation import Progress
from services.core.seeds import derive

JOINED_AFTER: Final = 10
"""Rounds after an erasure at which a newcomer joins."""

METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "retrain": {},
    "bmt": {"topology": {"kind": "bi_model"}},
    "mmt": {"topology": {"kind": "tree", "shape": "huffman"}},
    "fedcio": {"topology": {"kind": "clusters", "num_clusters": 3, "assignment": "spectral"}},
    "fats": {"training": {"algorithm": "fats"}},
    "exact_fun": {"training": {"algorithm": "exact_fun", "quantum": 0.001}, "retention": {"updates": "all"}},
    "sisa": {"topology": {"kind": "isolated"}, "validation": {"every": 1_000_000}},  # its members are not judged
    "standalone": {},
}
"""What each method changes in the run."""
PLAYERS: Final = {"sisa": play_ensemble, "standalone": play_pooled}
"""Those that are more, or less, than a simulation."""
SERVED: Final = (ENSEMBLE, "merged", "root", "all")
"""The cohort whose model stands for the run: the first of these that there is."""


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


def cell(dataset: str, method: str, seed: int, name: str, variant: Variant, preset: str, rounds: int | None) -> Cell:
    small = DATASETS[dataset].small if preset == "small" else {}
    setup = replace(DATASETS[dataset], **small, **variant.changes)
    rounds = rounds or setup.rounds
    goes_on = preset in variant.until_back and method != "fedcio"  # which is one model only when it has ended
    run: dict[str, Any] = {
        "model": dict(setup.model),
        "local": {**setup.local, **variant.local},
        "stop": {"rounds": 2 * rounds if goes_on else rounds},
        "retention": {"updates": "none"},
        **METHODS[method],
    }
    if method == "mmt" and variant.topology:
        run["topology"] = {"kind": "tree", **variant.topology}
    leavers = _drawn(seed) if variant.leavers_drawn else LEAVERS
    data: dict[str, Any] = {
        "source": setup.source,
        "partition": f"by-class:{1 / (1 + (NUM_CLIENTS - 1) * setup.rho):.6f}",
        "samples_per_client": setup.samples,
        "test_samples": setup.test_samples,
    }
    if variant.spoilt is not None:
        data["spoilt"] = {leavers[0]: variant.spoilt}
    scenario: dict[str, Any] = {
        "seed": seed,
        "run": run,
        "data": data,
        "clients": NUM_CLIENTS,
        "training": {"path": "stacked"},
        "script": _erasure_midway(method, leavers, rounds) if goes_on else _script(method, variant, leavers, rounds),
    }
    watch = IsBack(setup.threshold) if goes_on else None
    return Cell(dataset, method, seed, name, scenario, watch, PLAYERS.get(method, simulated))


def _way(method: str) -> str:
    return "reinit" if method in ("bmt", "mmt") else "auto" if method == "sisa" else "retrain"


def _erasure_midway(method: str, leavers: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """In the middle of a longer run, which ends as soon as the threshold is back: retraining may take all of it."""
    return [{"after_round": rounds, "erase": [leavers[0]], "method": _way(method)}]


def _script(method: str, variant: Variant, leavers: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Erasures when training has ended, which begins it anew; newcomers some rounds into the next stretch."""
    way = _way(method)
    events: list[dict[str, Any]] = []
    for place, letter in enumerate(variant.order):
        erased = variant.order[:place].count("U")
        if letter == "U":
            leaver = leavers[erased]
            events.append({"when": "finished", "erase": [leaver], "method": way, "recovery_rounds": rounds})
        else:
            moment = erased * rounds + min(JOINED_AFTER, rounds // 2)
            # A line that begins again counts its rounds from 1; each of them takes a second.
            restarts = way == "retrain"
            events.append({"at_s": float(moment), "join": 1} if restarts else {"after_round": moment, "join": 1})
    return events


def _drawn(seed: int) -> list[str]:
    weights = np.array(list(PROBABILITIES.values()))
    drawn = np.random.default_rng(derive(seed, "leavers")).choice(
        NUM_CLIENTS, len(LEAVERS), replace=False, p=weights / weights.sum()
    )
    return [f"client-{number}" for number in drawn]
