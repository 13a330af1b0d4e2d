"""What the exact methods are compared with: an ensemble of isolated models, and one model on pooled samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.exact_outcomes import Outcome, outcome_of
from benchmarks.exact_references import Judge, play_pooled
from benchmarks.exact_scenarios import cell
from benchmarks.exact_variants import NAMED
from lethe.simulation.scenario import parse
from services.data.sources import load
from services.models.build import build
from services.models.weights import save_tensors


def pooled(spoilt: dict[str, str]) -> Outcome:
    found = cell("digits", "standalone", 1, "baselines", NAMED["baselines"].variant, "small", 3)
    found.scenario["data"]["spoilt"] = spoilt
    return outcome_of(found, play_pooled(found))


def test_an_ensemble_predicts_the_class_with_the_highest_mean_probability(tmp_path: Path) -> None:
    scenario = parse(cell("digits", "sisa", 1, "baselines", NAMED["baselines"].variant, "small", 3).scenario)
    models = [build(scenario.run.model, seed) for seed in range(3)]
    for number, model in enumerate(models):
        save_tensors(tmp_path / str(number), model.state_dict())
    digits = load("digits")
    with torch.inference_mode():
        mean = sum(model(torch.from_numpy(digits.x_test)).softmax(1).numpy() for model in models)
    expected = float((np.argmax(mean, axis=1) == digits.y_test).mean())
    assert Judge(scenario).accuracy_of([tmp_path / str(number) for number in range(3)]) == expected
    assert Judge(scenario).accuracy_of([tmp_path / "0"]) != expected


def test_nothing_of_the_leavers_samples_is_in_the_pool_afterwards() -> None:
    clean, spoilt = pooled({}), pooled({"client-1": "adversarial"})
    assert len(clean.trained) == 3 and clean.trained != spoilt.trained
    assert clean.recoveries[0].accuracies == spoilt.recoveries[0].accuracies
    assert len(clean.recoveries[0].accuracies) == 4
