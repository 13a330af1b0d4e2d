"""What a model answers: log-probabilities or classes, sample by sample. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import log_softmax

from services.training import devices
from services.training.task import Batch, Labelled

BATCH: Final = 512

Doubles = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@torch.no_grad()
def predict(task: Labelled, model: nn.Module, batches: Iterable[Batch], device: torch.device) -> tuple[Doubles, Labels]:
    """(log-probabilities [samples, classes], right classes [samples])."""
    model.to(device).eval()
    found, labels = [], []
    for batch in devices.stream(batches, device):
        logits, right = task.predict(model, batch)
        found.append(log_softmax(logits.double(), dim=1).cpu().numpy())
        labels.append(right.cpu().numpy().astype(np.int64))
    if not found:
        return np.empty((0, 1)), np.empty(0, np.int64)
    return np.concatenate(found), np.concatenate(labels)


def classes_of(model: nn.Module, x: npt.NDArray[Any], device: torch.device) -> Labels:
    """The predicted class of each input."""
    model.to(device).eval()
    with torch.no_grad():
        parts = [
            model(torch.from_numpy(x[first : first + BATCH]).to(device)).argmax(dim=1).cpu().numpy()
            for first in range(0, len(x), BATCH)
        ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
