from __future__ import annotations

import math
from typing import Any

import pytest

from services.audit.spec import Thresholds
from services.audit.verdict import judge

GOOD = {
    "mia_auc": 0.52,
    "mia_samples": 200.0,
    "likelihood_auc": 0.55,
    "likelihood_samples": 200.0,
    "forgotten_accuracy": 0.80,
    "forgotten_samples": 100.0,
    "remaining_accuracy": 0.90,
    "remaining_samples": 900.0,
    "backdoor_success_rate": 0.12,
    "backdoor_samples": 500.0,
    "relative_distance": 0.2,
    "output_divergence": 0.05,
    "output_samples": 500.0,
}
ALL = Thresholds(
    max_mia_gap=0.05,
    max_likelihood_gap=0.05,
    max_forgotten_accuracy_gap=0.05,
    max_remaining_accuracy_drop=0.02,
    max_backdoor_success=0.1,
    max_relative_distance=0.5,
    max_output_divergence=0.1,
)


def passes(figures: dict[str, float], thresholds: Thresholds = ALL, references: Any = (GOOD,)) -> bool:
    return judge(figures, references, thresholds, chance=0.1).passed


def test_figures_like_those_of_the_reference_pass() -> None:
    verdict = judge(GOOD, (GOOD,), ALL, chance=0.1)
    assert verdict.passed and len(verdict.checks) == 7


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("spoilt", [None, math.nan, math.inf, -math.inf])
def test_a_missing_or_non_finite_figure_or_count_fails(name: str, spoilt: float | None) -> None:
    figures = {key: value for key, value in GOOD.items() if key != name or spoilt is not None}
    if spoilt is not None:
        figures[name] = spoilt
    assert not passes(figures)


@pytest.mark.parametrize("name", [name for name in GOOD if name.endswith("_samples")])
@pytest.mark.parametrize("count", [0.0, 19.0])
def test_too_few_samples_fail(name: str, count: float) -> None:
    assert not passes({**GOOD, name: count})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mia_auc", 0.60),
        ("mia_auc", 0.44),  # forgetting too much is a signal, too
        ("likelihood_auc", 0.7),
        ("forgotten_accuracy", 0.9),
        ("forgotten_accuracy", 0.1),
        ("remaining_accuracy", 0.87),
        ("backdoor_success_rate", 0.21),
        ("relative_distance", 0.6),
        ("output_divergence", 0.2),
    ],
)
def test_each_figure_beyond_its_threshold_fails_alone(name: str, value: float) -> None:
    verdict = judge({**GOOD, name: value}, (GOOD,), ALL, chance=0.1)
    assert [check.name for check in verdict.checks if not check.passed] == [name]
    assert str(value)[:3] in next(check.why for check in verdict.checks if not check.passed)


def test_remaining_accuracy_may_be_better_than_the_references() -> None:
    assert passes({**GOOD, "remaining_accuracy": 1.0})


def test_several_references_make_a_band() -> None:
    band = ({**GOOD, "mia_auc": 0.40}, {**GOOD, "mia_auc": 0.60})
    assert passes({**GOOD, "mia_auc": 0.64}, references=band)
    assert not passes({**GOOD, "mia_auc": 0.66}, references=band)


def test_a_gap_without_a_reference_or_with_a_spoilt_one_fails() -> None:
    only = Thresholds(max_mia_gap=0.5)
    assert not passes(GOOD, only, references=())
    assert not passes(GOOD, only, references=(GOOD, {**GOOD, "mia_auc": math.nan}))


def test_nothing_passes_by_default() -> None:
    verdict = judge(GOOD, (GOOD,), Thresholds(), chance=0.1)
    assert not verdict.passed and "nothing was checked" in verdict.checks[0].why
