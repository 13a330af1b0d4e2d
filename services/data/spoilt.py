"""Training samples as a client should not have them, for experiments in which such a client is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from services.data.dataset import Dataset

Spoilt = Literal["noisy", "adversarial"]


def spoil(data: Dataset, how: Spoilt, num_classes: int, seed: int) -> Dataset:
    """noisy: the inputs' values are shuffled over all samples and places, so that they say nothing about the labels,
    which stay; adversarial: every label is the next class. Test samples stay as they are."""
    if how == "adversarial":
        return replace(data, y_train=(data.y_train + 1) % num_classes)
    shuffled = np.random.default_rng(seed).permutation(data.x_train.ravel())
    return replace(data, x_train=shuffled.reshape(data.x_train.shape))
