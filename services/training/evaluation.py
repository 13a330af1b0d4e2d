"""Judging a model: at a client on its held-out data, or by the coordinator on a validation blob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from services.core.errors import Rejected
from services.core.figures import bounded
from services.data.dataset import Dataset, DataUnusable
from services.data.inputs import as_inputs
from services.models.weights import load_weights
from services.tensors import codec
from services.tensors.errors import KernelFailed
from services.tensors.streams import Stored, Writable
from services.training import devices
from services.training.task import Classifier, ClientTask
from services.wire.v1.runs import ModelSpec

BATCH_SIZE: Final = 256
MOST_CLASSES: Final = 20
"""A model with more classes, as language models have, is judged as a whole, not class by class."""


def evaluate(
    task: ClientTask, model: nn.Module, device: torch.device, *, batch_size: int = BATCH_SIZE
) -> dict[str, float]:
    """`accuracy`, mean `loss` and `num_samples` over the task's held-out samples; zeros when there are none."""
    model.to(device).eval()
    loss_sum, num_correct, num_samples = 0.0, 0, 0
    with torch.inference_mode():
        for batch in devices.stream(task.eval_batches(batch_size), device):
            batch_loss, batch_correct, batch_samples = task.score(model, batch)
            loss_sum += batch_loss
            num_correct += batch_correct
            num_samples += batch_samples
    count = max(1, num_samples)
    return {"accuracy": num_correct / count, "loss": loss_sum / count, "num_samples": float(num_samples)}


def evaluate_model(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: model (a ModelSpec as JSON), weights, data (digests), batch_size. Metrics only: no `out`.

    The data blob is safetensors with `x` (as the clients would store it) and `y` (integers). Beside the figures of all
    samples stand those of each class that has any, as `accuracy/3`.
    """
    task = validation_set(params["data"], inputs)
    try:
        model = task.model(ModelSpec.model_validate(params["model"]))
        load_weights(model, inputs[params["weights"]])
    except (Rejected, DataUnusable) as mismatch:
        raise KernelFailed(f"validation blob, model and weights do not fit: {mismatch}") from mismatch
    metrics = _by_class(task, model, params["batch_size"])
    return bounded(metrics)  # one bad update may make a model whose loss is no number: it is judged by its accuracy


@torch.inference_mode()
def _by_class(task: Classifier, model: nn.Module, batch_size: int) -> dict[str, float]:
    """What `evaluate` says, and `accuracy/3` for class 3; nothing of classes where there are too many."""
    model.eval()
    loss_sum, pairs = 0.0, []
    for batch in task.eval_batches(batch_size):
        logits, labels = task.predict(model, batch)
        loss_sum += float(cross_entropy(logits.float(), labels, reduction="sum"))
        pairs.append((labels, logits.argmax(dim=1) == labels))
    labels, is_right = (torch.cat(part) for part in zip(*pairs, strict=True))
    figures = {"accuracy": float(is_right.sum()) / len(labels), "loss": loss_sum / len(labels)}
    classes = sorted(set(labels.tolist()))
    if len(classes) <= MOST_CLASSES:
        of_class = ((label, is_right[labels == label]) for label in classes)
        figures |= {f"accuracy/{label}": float(right.sum()) / len(right) for label, right in of_class}
    return {**figures, "num_samples": float(len(labels))}


def validation_set(digest: str, inputs: Mapping[str, Stored]) -> Classifier:
    """The last one is kept, because every round of a run is judged on the same."""
    found = _kept.get(digest)
    if found is None:
        found = _read_validation_set(inputs[digest])
        _kept.clear()
        _kept[digest] = found
    return found


_kept: Final[dict[str, Classifier]] = {}


def _read_validation_set(blob: Stored) -> Classifier:
    data = codec.read(blob)
    x, y = data.get("x"), data.get("y")
    if x is None or y is None or y.shape != x.shape[:1] or y.dtype.kind not in "ui" or x.ndim < 2 or not y.size:
        found = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in data.items())
        raise KernelFailed(f"the validation blob needs x (samples first) and integer y of equal length; it has {found}")
    samples, labels = as_inputs(x), y.astype(np.int64)
    return Classifier(Dataset(samples[:1], labels[:1], samples, labels))
