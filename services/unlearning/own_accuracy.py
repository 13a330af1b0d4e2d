"""How well a model knows the data that it is to forget."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from services.training import devices
from services.training.local import TrainingFailed
from services.training.task import ClientTask

SCORING_BATCH: Final = 512


def own_accuracy(task: ClientTask, model: nn.Module, device: torch.device) -> float:
    """The share of the client's training samples that the model gets right."""
    was_training = model.training
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for batch in devices.stream(task.train_batches(SCORING_BATCH, 0), device):
            _, num_correct, num_samples = task.score(model, batch)
            correct, total = correct + num_correct, total + num_samples
    model.train(was_training)
    if total == 0:
        raise TrainingFailed("the task gave no training batches; check the data source")
    return correct / total
