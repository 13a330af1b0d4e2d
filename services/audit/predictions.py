"""What a model answers: per-sample log-probabilities on a validation blob, or on a client's own data. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import log_softmax

from services.audit.canaries import success, triggered
from services.audit.spec import Canary
from services.core.errors import Rejected
from services.data.inputs import as_inputs
from services.models.build import build
from services.models.weights import load_weights
from services.tensors import codec
from services.tensors.errors import KernelFailed
from services.tensors.streams import Stored, Writable
from services.training import devices
from services.training.task import Batch, Labelled
from services.wire.v1.runs import ModelSpec

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


def log_probabilities(spec: Mapping[str, Any], weights: Stored, data: Stored) -> tuple[Doubles, Labels]:
    """Of a built-in model on a blob with `x` and `y`."""
    model, x, y = _load(spec, weights, data)
    with torch.no_grad():
        parts = [
            log_softmax(model(torch.from_numpy(x[first : first + BATCH])).double(), dim=1).numpy()
            for first in range(0, len(x), BATCH)
        ]
    return np.concatenate(parts), y


def canary_success(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: model (a ModelSpec as JSON), weights, data (digests), canary. Works when the leaver is gone.

    `backdoor_success_rate`, `backdoor_samples`.
    """
    canary = Canary.model_validate(params["canary"])
    model, x, y = _load(params["model"], inputs[params["weights"]], inputs[params["data"]])
    return success(classes_of(model, triggered(x, y, canary), torch.device("cpu")), canary)


def _load(spec: Mapping[str, Any], weights: Stored, data: Stored) -> tuple[nn.Module, npt.NDArray[np.float32], Labels]:
    blob = codec.read(data)
    if "x" not in blob or "y" not in blob or not len(blob["y"]) or len(blob["x"]) != len(blob["y"]):
        raise KernelFailed("the validation blob needs x and y of equal length, and at least one sample")
    try:
        model = build(ModelSpec.model_validate(spec), seed=0)
        load_weights(model, weights)
    except Rejected as mismatch:
        raise KernelFailed(f"model and weights do not fit: {mismatch.detail}") from mismatch
    return model.eval(), as_inputs(blob["x"]), blob["y"].astype(np.int64)
