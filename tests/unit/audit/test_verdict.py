from __future__ import annotations

import math
from typing import Any

import pytest

from services.audit.spec import AuditPlan, Thresholds, read_plan
from services.audit.verdict import Measured, Verdict, judge

GOOD = {
    "mia_auc": 0.52,
    "mia_samples": 400.0,
    "likelihood_auc": 0.55,
    "likelihood_samples": 400.0,
    "forgotten_accuracy": 0.80,
    "forgotten_samples": 400.0,
    "backdoor_success_rate": 0.12,
    "backdoor_samples": 500.0,
}
REMEMBERED = {"mia_auc": 0.7, "likelihood_auc": 0.8, "forgotten_accuracy": 0.95, "backdoor_success_rate": 0.9}
REST = {"remaining_accuracy": 0.90, "remaining_samples": 900.0}
REFERENCE = {**GOOD, **REST}
ALL = Thresholds(
    max_mia_gap=0.05,
    max_likelihood_gap=0.05,
    max_forgotten_accuracy_gap=0.05,
    max_remaining_accuracy_drop=0.02,
    max_backdoor_success=0.1,
)


def verdict(
    after: dict[str, float],
    thresholds: Thresholds = ALL,
    references: Any = (REFERENCE,),
    *,
    before: dict[str, float] = REMEMBERED,
    rest: dict[str, float] = REST,
) -> Verdict:
    return judge({"a": Measured(after, before)}, rest, references, thresholds, chance=0.1)


def test_figures_like_those_of_the_reference_pass() -> None:
    found = verdict(GOOD)
    assert found.passed and len(found.checks) == 5
    assert all("before the erasure it was" in check.why for check in found.checks if check.client == "a")


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("spoilt", [None, math.nan, math.inf, -math.inf])
def test_a_missing_or_non_finite_figure_or_count_fails(name: str, spoilt: float | None) -> None:
    def changed(figures: dict[str, float]) -> dict[str, float]:
        kept = {key: value for key, value in figures.items() if key != name}
        return {**kept, name: spoilt} if spoilt is not None and name in figures else kept

    assert verdict(changed(GOOD), rest=changed(REST)).outcome == "failed"


@pytest.mark.parametrize("name", [name for name in REFERENCE if name.endswith("_samples")])
@pytest.mark.parametrize("count", [0.0, 19.0])
def test_too_few_samples_fail(name: str, count: float) -> None:
    found = verdict({**GOOD, name: count}) if name in GOOD else verdict(GOOD, rest={**REST, name: count})
    assert found.outcome == "failed"


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
    ],
)
def test_each_figure_beyond_its_threshold_fails_alone(name: str, value: float) -> None:
    found = verdict({**GOOD, name: value}, rest={**REST, name: value})
    assert [check.name for check in found.checks if not check.passed] == [name]
    assert str(value)[:3] in next(check.why for check in found.checks if not check.passed)


def test_remaining_accuracy_may_be_better_than_the_references() -> None:
    assert verdict(GOOD, rest={**REST, "remaining_accuracy": 1.0}).passed


def test_several_references_make_a_band() -> None:
    band = ({**REFERENCE, "mia_auc": 0.40}, {**REFERENCE, "mia_auc": 0.60})
    before = {**REMEMBERED, "mia_auc": 0.75}
    assert verdict({**GOOD, "mia_auc": 0.64}, references=band, before=before).passed
    assert not verdict({**GOOD, "mia_auc": 0.66}, references=band, before=before).passed


def test_a_gap_without_a_reference_or_with_a_spoilt_one_fails() -> None:
    only = Thresholds(max_mia_gap=0.1)
    assert verdict(GOOD, only, references=()).outcome == "failed"
    assert verdict(GOOD, only, references=(REFERENCE, {**REFERENCE, "mia_auc": math.nan})).outcome == "failed"


def test_nothing_passes_by_default() -> None:
    found = verdict(GOOD, Thresholds())
    assert not found.passed and "nothing was checked" in found.checks[0].why


def test_a_leaver_that_is_forgotten_too_well_fails_beside_one_that_is_remembered() -> None:
    """The highest of both accuracies would be within bounds."""
    only = Thresholds(max_forgotten_accuracy_gap=0.15)
    leavers = {
        name: Measured({"forgotten_accuracy": accuracy, "forgotten_samples": 400.0}, {"forgotten_accuracy": 0.99})
        for name, accuracy in (("shunned", 0.02), ("at-ease", 0.88))
    }
    found = judge(leavers, {}, ({"forgotten_accuracy": 0.75},), only, chance=0.1)
    assert found.outcome == "failed"
    assert [(check.client, check.outcome) for check in found.checks] == [("at-ease", "passed"), ("shunned", "failed")]
    assert (found.of("at-ease"), found.of("shunned")) == ("passed", "failed")


@pytest.mark.parametrize("name", REMEMBERED)
@pytest.mark.parametrize("before", [None, math.nan, 0.0])
def test_a_figure_that_was_no_different_before_the_erasure_says_nothing(name: str, before: float | None) -> None:
    known = {key: value for key, value in REMEMBERED.items() if key != name}
    if before is not None:
        known[name] = before if math.isnan(before) else GOOD[name]
    found = verdict(GOOD, before=known)
    assert [check.name for check in found.checks if check.outcome == "says-nothing"] == [name]
    assert found.passed  # the others have shown something


def test_an_audit_without_power_says_nothing_instead_of_passing() -> None:
    found = verdict(GOOD, before=GOOD)
    assert found.outcome == "says-nothing" and not found.passed
    assert verdict(GOOD, before={}).outcome == "says-nothing"


def test_a_wide_bound_that_nothing_could_break_says_nothing() -> None:
    assert verdict(GOOD, Thresholds(max_mia_gap=1.0)).outcome == "says-nothing"


def test_a_difference_that_chance_explains_is_no_power() -> None:
    only, before = Thresholds(max_mia_gap=0.05), {"mia_auc": 0.65}
    assert verdict({**GOOD, "mia_samples": 400.0}, only, before=before).passed
    assert verdict({**GOOD, "mia_samples": 40.0}, only, before=before).outcome == "says-nothing"


def test_one_leaver_of_whom_nothing_is_shown_keeps_the_whole_audit_from_passing() -> None:
    leavers = {"a": Measured(GOOD, REMEMBERED), "b": Measured(GOOD, GOOD)}
    found = judge(leavers, REST, (REFERENCE,), ALL, chance=0.1)
    assert (found.outcome, found.of("a"), found.of("b")) == ("says-nothing", "passed", "says-nothing")


def test_a_request_that_was_stored_with_withdrawn_thresholds_is_still_read() -> None:
    stored = AuditPlan(thresholds=Thresholds(max_mia_gap=0.1)).model_dump(mode="json")
    plain = {**stored, "thresholds": {**stored["thresholds"], "max_relative_distance": None}}
    asked = {**stored, "thresholds": {**stored["thresholds"], "max_output_divergence": 0.5}}
    plan, withdrawn = read_plan(plain)
    assert plan.thresholds.max_mia_gap == 0.1 and withdrawn == []
    assert read_plan(asked)[1] == ["max_output_divergence"]
    with pytest.raises(ValueError, match="max_output_divergence"):
        AuditPlan.model_validate(asked)
