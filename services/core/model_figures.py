"""Which of a checkpoint's figures say how good its model is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ACCURACIES: Final = ("validation_accuracy", "clients_accuracy")
"""Figures that say how good a model is; the first that is known counts."""


def accuracy_of(figures: Mapping[str, float]) -> float | None:
    """A model's accuracy: on the coordinator's data if it was judged there, else at the clients."""
    return next((figures[name] for name in ACCURACIES if name in figures), None)


def loss_of(figures: Mapping[str, float]) -> float | None:
    """A model's loss, where its accuracy was judged."""
    return figures.get("validation_loss", figures.get("clients_loss"))
