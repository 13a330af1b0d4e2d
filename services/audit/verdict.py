"""From an audit's figures to a verdict. It never passes by default: a figure that is missing, not finite or made of too
few samples fails, and so does a request that asks for no check at all.

Every leaver is judged by itself. A check shows something only if the model before the erasure breaks its bounds, by
more than chance: otherwise nothing was there to be forgotten that it could see, and it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from services.audit.spec import Thresholds

Figures = Mapping[str, float]
Outcome = Literal["passed", "failed", "says-nothing"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one leaver found, of the mended model and of the one before the erasure."""

    after: Figures = field(default_factory=dict)
    before: Figures = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    outcome: Outcome
    value: float | None
    """None: it is missing or not finite."""
    lowest: float | None
    highest: float | None
    why: str
    client: str | None = None
    """The leaver whose data it is about; None: those who remain, or nobody."""
    before: float | None = None
    """The same figure of the model before the erasure."""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    def of(self, leaver: str) -> Outcome:
        return _outcome(check.outcome for check in self.checks if check.client == leaver)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one figure; `counted` is the figure that says of how many samples it was made."""

    name: str
    counted: str
    lowest: float | None = None
    highest: float | None = None
    has_reference: bool = True


def judge(
    leavers: Mapping[str, Measured],
    remaining: Figures,
    references: Sequence[Figures],
    thresholds: Thresholds,
    *,
    chance: float,
) -> Verdict:
    """`references`: the same figures of models retrained without the leavers; one, or several for a band.

    `chance`: how often a model that knows nothing of a canary answers with its class.
    """
    wanted, least = thresholds, thresholds.min_samples
    forgetting = [
        _near("mia_auc", wanted.max_mia_gap, references, "mia_samples"),
        _near("likelihood_auc", wanted.max_likelihood_gap, references, "likelihood_samples"),
        _near("forgotten_accuracy", wanted.max_forgotten_accuracy_gap, references, "forgotten_samples"),
    ]
    if wanted.max_backdoor_success is not None:
        limit = wanted.max_backdoor_success + chance
        forgetting.append(Bounds("backdoor_success_rate", "backdoor_samples", highest=limit))
    checks = [
        _with_power(bounds, leavers[name], least, name)
        for name in sorted(leavers)
        for bounds in forgetting
        if bounds is not None
    ]
    kept = _near("remaining_accuracy", wanted.max_remaining_accuracy_drop, references, "remaining_samples")
    if kept is not None:  # may be better than that of the references
        checks.append(_within(replace(kept, highest=None), remaining, least))
    if not checks:
        checks = [Check("thresholds", "failed", None, None, None, "no threshold was given: nothing was checked")]
    return verdict_of(checks)


def verdict_of(checks: Iterable[Check]) -> Verdict:
    made = tuple(checks)
    outcomes = {_outcome(check.outcome for check in made if check.client == client) for client in _clients(made)}
    return Verdict(next(one for one in ("failed", "says-nothing", "passed") if one in outcomes), made)


def _clients(checks: Iterable[Check]) -> set[str | None]:
    return {check.client for check in checks}


def _outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of one leaver's checks: passed if nothing failed, and something was shown."""
    found = set(outcomes)
    return next((one for one in ("failed", "passed") if one in found), "says-nothing")


def _with_power(bounds: Bounds, leaver: Measured, min_samples: int, client: str) -> Check:
    """A figure within bounds shows something only next to one that was outside of them before the erasure."""
    before = _finite(leaver.before, bounds.name)
    check = replace(_within(bounds, leaver.after, min_samples), client=client, before=before)
    if not check.passed:
        return check
    if before is None:
        why = "says nothing: there is no such figure of the model before the erasure"
    elif not _is_beyond(bounds, before, 1 / math.sqrt(leaver.after[bounds.counted])):
        why = f"says nothing: before the erasure it was {before:.4g}, which passes as well or differs by chance"
    else:
        return replace(check, why=f"within bounds; before the erasure it was {before:.4g}")
    return replace(check, outcome="says-nothing", why=why)


def _is_beyond(bounds: Bounds, value: float, noise: float) -> bool:
    """`noise`: 1 / √samples, about two standard errors of a share or an AUC."""
    is_below = bounds.lowest is not None and value < bounds.lowest - noise
    return is_below or (bounds.highest is not None and value > bounds.highest + noise)


def _near(name: str, gap: float | None, references: Sequence[Figures], counted: str) -> Bounds | None:
    if gap is None:
        return None
    known = [value for value in (_finite(reference, name) for reference in references) if value is not None]
    if not known or len(known) < len(references):
        return Bounds(name, counted, has_reference=False)
    return Bounds(name, counted, min(known) - gap, max(known) + gap)


def _within(bounds: Bounds, figures: Figures, min_samples: int) -> Check:
    value, num_samples = _finite(figures, bounds.name), _finite(figures, bounds.counted)
    lowest, highest = bounds.lowest, bounds.highest
    if not bounds.has_reference:
        why = "there is no retrained reference to compare with"
    elif value is None:
        why = "the figure is missing or not finite"
    elif num_samples is None or num_samples < min_samples:
        why = f"made of {num_samples or 0:.0f} samples; {min_samples} are needed"
    elif lowest is not None and value < lowest:
        why = f"{value:.4g} is below {lowest:.4g}"
    elif highest is not None and value > highest:
        why = f"{value:.4g} is above {highest:.4g}"
    else:
        return Check(bounds.name, "passed", value, lowest, highest, "within bounds")
    return Check(bounds.name, "failed", value, lowest, highest, why)


def _finite(figures: Figures, name: str) -> float | None:
    value = figures.get(name)
    return value if value is not None and math.isfinite(value) else None
