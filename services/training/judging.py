"""What the clients' own judgements of a model are worth.

A client may claim any number of samples and any accuracy. So none counts for more than a few others do, and the stop
rule goes by what is left of the accuracy without the client that raises it most.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from services.core.figures import weighted_mean
from services.program.contract import UpdateRef

MOST_WEIGHT: Final = 3
"""No client counts for more than this many with the median number of samples."""


def clients_figures(updates: Sequence[UpdateRef]) -> dict[str, float]:
    """Means of what the clients reported, by samples up to `MOST_WEIGHT` medians, in the order of their names."""
    means = {f"clients_{name}": weighted_mean(_reported(updates, name)) for name in ("accuracy", "loss")}
    return {name: mean for name, mean in means.items() if mean is not None}


def supported_accuracy(updates: Sequence[UpdateRef], *, is_alone: bool) -> float | None:
    """The lowest mean accuracy that is left when any one client is taken out. None where only one reported: its word
    counts only when it `is_alone` in its cohort, as the model is then its own."""
    reported = _reported(updates, "accuracy")
    if len(reported) < 2:
        return reported[0][0] if reported and is_alone else None
    total = sum(value * weight for value, weight in reported)
    weight_of_all = sum(weight for _, weight in reported)
    lowest = min((total - value * weight) / (weight_of_all - weight) for value, weight in reported)
    return round(lowest, 9)  # what all report alike is not missed by the last bit


def _reported(updates: Sequence[UpdateRef], name: str) -> list[tuple[float, float]]:
    """(value, weight) of those who reported the figure."""
    own = [update for update in updates if name in update.metrics]
    most = MOST_WEIGHT * median(update.num_samples for update in own) if own else 0
    return [(update.metrics[name], float(min(update.num_samples, most))) for update in own]
