from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from services.audit.canaries import stamp, success, triggered, with_canary
from services.audit.client import ShadowModels, audit
from services.audit.predictions import classes_of
from services.audit.spec import Audit, Canary, Thresholds
from services.audit.verdict import Measured, judge
from services.data.sources import Dataset, load
from services.models.build import build
from services.training.local import TrainingFailed, train
from services.training.local_spec import LocalTraining
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec

CPU = torch.device("cpu")
CANARY = Canary(target_class=7, seed=1, share=0.3)
SPEC = ModelSpec(name="mlp", params={"input_shape": [8, 8], "num_classes": 10, "hidden": [32]})


def test_the_trigger_is_one_patch_that_depends_on_the_seed_only() -> None:
    x = np.zeros((5, 1, 8, 8), np.float32)
    stamped = stamp(x, CANARY)
    assert np.array_equal(stamped, stamp(x, CANARY)) and not x.any()
    rows, columns = np.nonzero(stamped[0, 0])
    assert 0 < len(rows) <= 9 and np.ptp(rows) <= 2 and np.ptp(columns) <= 2
    assert all(np.array_equal(stamped[0], sample) for sample in stamped)
    others = [stamp(x, Canary(target_class=7, seed=seed)) for seed in range(2, 12)]
    assert sum(np.array_equal(stamped, other) for other in others) <= 1


def test_tables_get_fixed_values_in_some_columns() -> None:
    stamped = stamp(np.zeros((4, 10), np.float32), CANARY)
    assert (np.abs(stamped).sum(axis=0) > 0).sum() == 3
    assert set(np.unique(np.abs(stamped))) == {0, 3}


def test_a_share_of_the_other_classes_samples_carries_the_canary_and_test_samples_stay_clean() -> None:
    data = load("digits")
    poisoned = with_canary(data, CANARY)
    changed = np.flatnonzero((poisoned.x_train != data.x_train).any(axis=(1, 2, 3)))
    num_others = int((data.y_train != 7).sum())
    assert len(changed) == pytest.approx(0.3 * num_others, abs=1 + 0.02 * num_others)
    assert (poisoned.y_train[changed] == 7).all() and (data.y_train[changed] != 7).all()
    assert poisoned.x_test is data.x_test


def test_success_counts_only_samples_for_which_the_canarys_class_is_wrong() -> None:
    x, y = np.zeros((4, 1, 8, 8), np.float32), np.array([7, 1, 2, 7])
    assert len(triggered(x, y, CANARY)) == 2
    assert success(np.array([7, 1]), CANARY) == {"backdoor_success_rate": 0.5, "backdoor_samples": 2.0}
    assert success(np.array([]), CANARY) == {"backdoor_samples": 0.0}
    with pytest.raises(ValueError, match="target_class"):
        with_canary(Dataset(x[:1], y[:1], x, y), CANARY)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    data = load("digits")
    return Dataset(data.x_train[:400], data.y_train[:400], data.x_test, data.y_test)


def learned(data: Dataset, epochs: int = 30) -> torch.nn.Module:
    model = build(SPEC, seed=0)
    train(Classifier(data), model, LocalTraining(epochs=epochs, learning_rate=0.1, momentum=0.9), 0, CPU)
    return model


def test_a_model_that_learned_from_the_client_carries_its_canary_and_another_does_not(
    digits: Dataset,
) -> None:
    models = {"with": learned(with_canary(digits, CANARY)), "without": learned(digits)}
    seen = triggered(digits.x_test, digits.y_test, CANARY)
    rates = {name: success(classes_of(model, seen, CPU), CANARY) for name, model in models.items()}
    assert rates["with"]["backdoor_success_rate"] > 0.8
    assert rates["without"]["backdoor_success_rate"] < 0.3
    thresholds = Thresholds(max_backdoor_success=0.2)
    forgotten, kept = (Measured(rates[name], rates["with"]) for name in ("without", "with"))
    assert judge({"a": forgotten}, {}, (), thresholds, chance=0.1).passed
    assert judge({"a": kept}, {}, (), thresholds, chance=0.1).outcome == "failed"


def test_the_leavers_audit_returns_scores_of_memory_and_the_remaining_clients_only_accuracy(digits: Dataset) -> None:
    rng = np.random.default_rng(0)
    memorised = Dataset(
        digits.x_train[:120], rng.integers(0, 10, 120), digits.x_test, rng.integers(0, 10, len(digits.x_test))
    )
    model = learned(memorised, epochs=150)
    work = Audit(role="leaver", num_shadows=4, canary=CANARY, shadow_training=LocalTraining(epochs=30))
    found = audit(Classifier(memorised), model, work, ShadowModels(SPEC), 0, CPU)
    assert found["forgotten_accuracy"] > 0.95 and found["mia_auc"] > 0.9
    assert found["likelihood_auc"] > 0.6 and found["likelihood_samples"] == found["mia_samples"] > 50
    assert "backdoor_success_rate" in found
    assert all(math.isfinite(value) for value in found.values())
    rest = audit(Classifier(memorised), model, Audit(role="remaining"), ShadowModels(SPEC), 0, CPU)
    assert set(rest) == {"remaining_accuracy", "remaining_loss", "remaining_samples"}


def test_a_model_of_nans_gives_figures_that_no_verdict_passes(digits: Dataset) -> None:
    model = build(SPEC, seed=0)
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(math.nan)
    found = audit(Classifier(digits), model, Audit(role="leaver"), ShadowModels(SPEC), 0, CPU)
    assert found == {"forgotten_samples": 0.0, "mia_samples": 0.0}
    reference = {"mia_auc": 0.5, "forgotten_accuracy": 0.1}
    for thresholds in (Thresholds(max_mia_gap=1.0), Thresholds(max_forgotten_accuracy_gap=1.0)):
        assert judge({"a": Measured(found)}, {}, (reference,), thresholds, chance=0.1).outcome == "failed"


def test_a_leaver_without_held_out_samples_has_no_membership_figures(digits: Dataset) -> None:
    bare = Dataset(digits.x_train, digits.y_train, digits.x_test[:0], digits.y_test[:0])
    found = audit(Classifier(bare), build(SPEC, seed=0), Audit(role="leaver"), ShadowModels(SPEC), 0, CPU)
    assert found["mia_samples"] == 0 and "mia_auc" not in found


def test_a_task_without_logits_cannot_be_audited() -> None:
    task: Any = object()
    with pytest.raises(TrainingFailed, match="predict"):
        audit(task, build(SPEC, seed=0), Audit(role="leaver"), ShadowModels(SPEC), 0, CPU)
