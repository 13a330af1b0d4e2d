"""From an audit's figures to a verdict. It never passes by default: a figure that is missing, not finite or made of too
few samples fails, and so does a request that asks for no check at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.audit.spec import Thresholds

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    value: float | None
    """None: it is missing or not finite."""
    lowest: float | None
    highest: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: bool
    checks: tuple[Check, ...]


def judge(figures: Figures, references: Sequence[Figures], thresholds: Thresholds, *, chance: float) -> Verdict:
    """`references`: the same figures of models retrained without the leaver; one, or several for a band.

    `chance`: how often a model that knows nothing of a canary answers with its class.
    """
    wanted = thresholds
    checks = [
        _near("mia_auc", wanted.max_mia_gap, figures, references, "mia_samples", wanted.min_samples),
        _near(
            "likelihood_auc", wanted.max_likelihood_gap, figures, references, "likelihood_samples", wanted.min_samples
        ),
        _near(
            "forgotten_accuracy",
            wanted.max_forgotten_accuracy_gap,
            figures,
            references,
            "forgotten_samples",
            wanted.min_samples,
        ),
        _not_far_below(
            "remaining_accuracy",
            wanted.max_remaining_accuracy_drop,
            figures,
            references,
            "remaining_samples",
            wanted.min_samples,
        ),
        _at_most(
            "backdoor_success_rate",
            None if wanted.max_backdoor_success is None else wanted.max_backdoor_success + chance,
            figures,
            "backdoor_samples",
            wanted.min_samples,
        ),
        _at_most("relative_distance", wanted.max_relative_distance, figures, None, 0),
        _at_most("output_divergence", wanted.max_output_divergence, figures, "output_samples", wanted.min_samples),
    ]
    made = tuple(check for check in checks if check is not None)
    if not made:
        made = (Check("thresholds", False, None, None, None, "no threshold was given: nothing was checked"),)
    return Verdict(all(check.passed for check in made), made)


def _near(
    name: str, gap: float | None, figures: Figures, references: Sequence[Figures], counted: str, min_samples: int
) -> Check | None:
    if gap is None:
        return None
    band = _band(name, references)
    if band is None:
        return Check(name, False, _finite(figures, name), None, None, "there is no retrained reference to compare with")
    return _within(name, figures, band[0] - gap, band[1] + gap, counted, min_samples)


def _not_far_below(
    name: str, drop: float | None, figures: Figures, references: Sequence[Figures], counted: str, min_samples: int
) -> Check | None:
    if drop is None:
        return None
    band = _band(name, references)
    if band is None:
        return Check(name, False, _finite(figures, name), None, None, "there is no retrained reference to compare with")
    return _within(name, figures, band[0] - drop, None, counted, min_samples)


def _at_most(name: str, limit: float | None, figures: Figures, counted: str | None, min_samples: int) -> Check | None:
    return None if limit is None else _within(name, figures, None, limit, counted, min_samples)


def _within(
    name: str, figures: Figures, lowest: float | None, highest: float | None, counted: str | None, min_samples: int
) -> Check:
    value = _finite(figures, name)
    num_samples = _finite(figures, counted) if counted is not None else None
    if value is None:
        why = "the figure is missing or not finite"
    elif counted is not None and (num_samples is None or num_samples < min_samples):
        why = f"made of {num_samples or 0:.0f} samples; {min_samples} are needed"
    elif lowest is not None and value < lowest:
        why = f"{value:.4g} is below {lowest:.4g}"
    elif highest is not None and value > highest:
        why = f"{value:.4g} is above {highest:.4g}"
    else:
        return Check(name, True, value, lowest, highest, "within bounds")
    return Check(name, False, value, lowest, highest, why)


def _band(name: str, references: Sequence[Figures]) -> tuple[float, float] | None:
    values = [_finite(reference, name) for reference in references]
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known and len(known) == len(values) else None


def _finite(figures: Figures, name: str) -> float | None:
    value = figures.get(name)
    return value if value is not None and math.isfinite(value) else None
