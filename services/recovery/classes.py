"""What a recovery needs to know of a client's training samples: their classes, and whether they are others by now."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from services.data.dataset import Array
from services.training import devices
from services.training.local import TrainingFailed
from services.training.task import ClientTask, Labelled, Sampled

COUNTING_BATCH: Final = 512


def labelled(task: ClientTask) -> Labelled:
    if not isinstance(task, Labelled):
        raise TrainingFailed("this recovery needs a task with predict(model, batch); use the recovery plain")
    return task


@torch.no_grad()
def class_counts(task: Labelled, model: nn.Module, device: torch.device) -> Tensor:
    """How many of the training samples each class has, as a vector over the model's classes."""
    was_training = model.training
    model.to(device).eval()
    counts = torch.zeros(0, dtype=torch.float64)
    for batch in devices.stream(task.train_batches(COUNTING_BATCH, 0), device):
        logits, labels = task.predict(model, batch)
        found = torch.bincount(labels.cpu(), minlength=logits.shape[1]).double()
        counts = found if not len(counts) else counts + found
    model.train(was_training)
    if not len(counts):
        raise TrainingFailed("the task gave no training batches; check the data source")
    return counts


def sampled(task: ClientTask) -> Sampled:
    """The task, if it gives arrays of numbers."""
    if not isinstance(task, Sampled) or task.train_arrays[0].dtype.kind != "f":
        raise TrainingFailed(
            "this recovery makes samples from images or tables of numbers, as a task gives them with train_arrays; "
            "use the recovery plain"
        )
    return task


def fingerprint(x: Array, y: Array) -> str:
    """A digest of the samples: what was made of others has another one."""
    digest = hashlib.sha256(repr((x.shape, str(x.dtype), y.shape)).encode())
    digest.update(np.ascontiguousarray(x).data)
    digest.update(np.ascontiguousarray(y).data)
    return digest.hexdigest()
