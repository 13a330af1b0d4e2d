"""Which class of the validation set lost most accuracy between two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from services.core.errors import Rejected
from services.data.dataset import DataUnusable
from services.models.weights import load_weights
from services.tensors.errors import KernelFailed
from services.tensors.streams import Stored, Writable
from services.training.evaluation import validation_set
from services.training.task import Classifier
from services.wire.v1.runs import ModelSpec


def find_class(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: model (a ModelSpec as JSON), before, after, data (digests), batch_size. Figures only.

    `skewed_class`: the class whose accuracy fell most, the lowest of equals; missing where none fell. Beside it
    `accuracy_before` and `accuracy_after` on that class. Classes that the validation set has no sample of are not seen.
    """
    task, spec = validation_set(params["data"], inputs), ModelSpec.model_validate(params["model"])
    size = params["batch_size"]
    before, after = (_accuracies(task, spec, inputs[params[name]], size) for name in ("before", "after"))
    fall = before - after
    if not bool((fall > 0).any()):
        return {}
    worst = int(torch.nan_to_num(fall, nan=-1.0).argmax())
    return {
        "skewed_class": float(worst),
        "accuracy_before": float(before[worst]),
        "accuracy_after": float(after[worst]),
    }


@torch.inference_mode()
def _accuracies(task: Classifier, spec: ModelSpec, weights: Stored, batch_size: int) -> Tensor:
    """Accuracies by class; NaN where there is no sample."""
    try:
        model = task.model(spec)
        load_weights(model, weights)
    except (Rejected, DataUnusable) as mismatch:
        raise KernelFailed(f"validation blob, model and weights do not fit: {mismatch}") from mismatch
    model.eval()
    correct = total = torch.zeros(0, dtype=torch.float64)
    for batch in task.eval_batches(batch_size):
        logits, labels = task.predict(model, batch)
        if not len(total):
            correct = total = torch.zeros(logits.shape[1], dtype=torch.float64)
        right = labels[logits.argmax(dim=1) == labels]
        correct = correct + torch.bincount(right, minlength=len(total))
        total = total + torch.bincount(labels, minlength=len(total))
    return correct / total
