"""What clients do in every run: train, and judge a model on what they hold out."""

from __future__ import annotations

from services.program.client import TaskInHand
from services.training import evaluation, local


def train(hand: TaskInHand[None]) -> dict[str, float]:
    return local.train(hand.task, hand.model, hand.local, hand.seed, hand.device, **hand.signals)


def evaluate(hand: TaskInHand[None]) -> dict[str, float]:
    figures = evaluation.evaluate(hand.task, hand.model, hand.device)
    if not figures["num_samples"]:
        raise local.TrainingFailed("this client holds no data to evaluate on")
    return figures
