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
MERGED: Final = ("fedcio",)
"""Those that are one model only when they have ended."""
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
    setup = replace(DATASETS[dataset], **variant.changes)
    rounds = rounds or setup.rounds
    until_back = preset in variant.until_back
    order = "U" if until_back else variant.order
    total = rounds * (1 + order.count("U"))
    run: dict[str, Any] = {
        "model": dict(setup.model),
        "local": {**setup.local, **variant.local},
        "stop": {"rounds": rounds if method in MERGED else total},
        "retention": {"updates": "none"},
        "validation": {"parts": False},
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
        "script": _script(method, order, leavers, rounds),
    }
    if method == "retrain" and not until_back:
        scenario["stop"] = {"virtual_s": float(total)}
    watch = IsBack(setup.threshold) if until_back else None
    return Cell(dataset, method, seed, name, scenario, watch, PLAYERS.get(method, simulated))


def _script(method: str, order: str, leavers: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """An erasure after every stretch of rounds, a newcomer some rounds later."""
    way = {"bmt": "reinit", "mmt": "reinit", "sisa": "auto"}.get(method, "retrain")
    events = []
    for place, letter in enumerate(order):
        erased = order[:place].count("U")
        if letter == "U":
            moment = (erased + 1) * rounds
            event: dict[str, Any] = {"erase": [leavers[erased]], "method": way}
        else:
            moment = erased * rounds + min(JOINED_AFTER, rounds // 2)
            event = {"join": 1}
        if method in MERGED:
            events.append({"when": "finished", **event})
        elif method == "retrain":  # begins again with round 1; each of its rounds takes a second
            events.append({"at_s": float(moment), **event})
        else:
            events.append({"after_round": moment, **event})
    return events


def _drawn(seed: int) -> list[str]:
    weights = np.array(list(PROBABILITIES.values()))
    drawn = np.random.default_rng(derive(seed, "leavers")).choice(
        NUM_CLIENTS, len(LEAVERS), replace=False, p=weights / weights.sum()
    )
    return [f"client-{number}" for number in drawn]
