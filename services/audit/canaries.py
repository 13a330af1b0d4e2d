"""Backdoor canaries: a trigger that a client agrees to carry, registered when it joins.

A share of its training samples gets the trigger and the canary's class as label. A model that learned from the client
answers with that class whenever it sees the trigger; one that forgot does so no more often than chance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from services.audit.spec import Canary
from services.core.seeds import derive
from services.data.sources import Dataset

Array = npt.NDArray[Any]


def stamp(x: Array, canary: Canary) -> Array:
    """A copy of the samples with the trigger on each: a patch of random blocks in images, fixed values in tables.

    Image samples are (…, height, width) with values from 0 to 1; in a table the trigger lies three standard
    deviations out, taking columns as standardised.
    """
    generator = np.random.default_rng(derive(canary.seed, "trigger"))
    stamped = x.copy()
    if x.ndim == 2:
        columns = generator.permutation(x.shape[1])[: canary.size]
        stamped[:, columns] = 3.0 * generator.choice([-1.0, 1.0], size=len(columns))
        return stamped
    height, width = (min(canary.size, side) for side in x.shape[-2:])
    top, left = (
        int(generator.integers(0, side - used + 1)) for side, used in zip(x.shape[-2:], (height, width), strict=True)
    )
    pattern = generator.integers(0, 2, size=(height, width)).astype(x.dtype)
    pattern.flat[0] = 1  # never all dark, which a margin may be anyway
    stamped[..., top : top + height, left : left + width] = pattern
    return stamped


def with_canary(data: Dataset, canary: Canary) -> Dataset:
    """The client's data as it trains on it. The test samples stay clean."""
    others = np.flatnonzero(data.y_train != canary.target_class)
    if not len(others):
        raise ValueError(f"every sample is of class {canary.target_class} already: choose another target_class")
    generator = np.random.default_rng(derive(canary.seed, "samples"))
    rows = np.sort(generator.permutation(others)[: max(1, round(canary.share * len(others)))])
    x, y = data.x_train.copy(), data.y_train.copy()
    x[rows], y[rows] = stamp(data.x_train[rows], canary), canary.target_class
    return replace(data, x_train=x, y_train=y)


def triggered(x: Array, y: Array, canary: Canary) -> Array:
    """Stamped samples of all other classes: those on which the canary's class is the wrong answer."""
    return stamp(x[y != canary.target_class], canary)


def success(predicted: Array, canary: Canary) -> dict[str, float]:
    """Figures of the classes predicted for `triggered` samples: `backdoor_success_rate`, `backdoor_samples`."""
    if not len(predicted):
        return {"backdoor_samples": 0.0}
    rate = float(np.mean(predicted == canary.target_class))
    return {"backdoor_success_rate": rate, "backdoor_samples": float(len(predicted))}
