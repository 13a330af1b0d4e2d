"""Figures that clients and kernels report: bounds within which sums, products and squares of them stay finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Annotated, Final

from pydantic import Field

MOST_FIGURE: Final = 1e30
"""The largest figure in size that is taken: times the most samples of a million clients it is far from overflowing."""
MOST_SAMPLES: Final = 10**9
"""The most samples that a client may say it used; a federation or a run may allow fewer."""
LARGEST: Final = 1e12
"""The largest number in size that an update may hold: squares of it, and sums of a great many squares, are finite even
in float32."""
_SHARES: Final = ("accuracy", "_auc", "success_rate", "_f1", "at_low_fpr")
"""How the names of figures end that lie between 0 and 1."""
_COUNTS: Final = ("seconds", "_samples")
"""How the names of figures end that are not negative."""

Figure = Annotated[float, Field(ge=-MOST_FIGURE, le=MOST_FIGURE)]
FigureName = Annotated[str, Field(min_length=1, max_length=64)]


def impossible(figures: Mapping[str, float]) -> str | None:
    """What is wrong with a figure that cannot be, if one cannot."""
    for name, value in figures.items():
        if name.endswith(_SHARES) and not 0.0 <= value <= 1.0:
            return f"{name} is {value}; it must lie between 0 and 1"
        if name.endswith(_COUNTS) and value < 0:
            return f"{name} is {value}; it must not be negative"
    return None


def bounded(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures that can be reckoned with, as floats; others are left out. What the door takes passes unchanged."""
    return {name: float(value) for name, value in figures.items() if is_bounded(value)}


def is_bounded(value: float) -> bool:
    return -MOST_FIGURE <= value <= MOST_FIGURE


def weighted_mean(pairs: Iterable[tuple[float, float]]) -> float | None:
    """The mean of (value, weight) in the order given; None where nothing is to be weighed, or it is not finite."""
    total = weight_of_all = 0.0
    for value, weight in pairs:
        total += value * weight
        weight_of_all += weight
    mean = total / weight_of_all if weight_of_all > 0 else None
    return mean if mean is not None and isfinite(mean) else None
