"""How far a model is from a retrained one: in its parameters (numpy) and in its outputs on the validation set (torch).

Both are scores. Before/after differences are never written anywhere: they would let others rebuild what was forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.tensors.errors import KernelFailed
from services.tensors.rewrite import total_norm
from services.tensors.slices import Source

Doubles = npt.NDArray[np.float64]


def parameter_divergence(params: Mapping[str, Any], inputs: Mapping[str, Path], out: Path) -> dict[str, float]:
    """Kernel. params: model, reference (digests). `distance`, `relative_distance` (to the reference's norm)."""
    with ExitStack() as stack:
        model, reference = (Source.open(inputs[params[name]], stack) for name in ("model", "reference"))
        layout = model.header.layout
        if layout != reference.header.layout:
            raise KernelFailed("model and reference do not have the same layout")
        distance = total_norm(layout, lambda window: window(model) - window(reference))
        length = total_norm(layout, lambda window: window(reference))
    if length == 0:
        raise KernelFailed("the reference is all zeros: nothing is relative to it")
    return {"distance": distance, "relative_distance": distance / length}


def output_divergence(params: Mapping[str, Any], inputs: Mapping[str, Path], out: Path) -> dict[str, float]:
    """Kernel. params: model (a ModelSpec as JSON), weights, reference, data (digests).

    `output_divergence` (mean Jensen-Shannon divergence, nats), `output_agreement` (same class), `output_samples`.
    """
    from services.audit.predictions import log_probabilities

    own, other = (
        log_probabilities(params["model"], inputs[params[name]], inputs[params["data"]])[0]
        for name in ("weights", "reference")
    )
    return compare_outputs(own, other)


def compare_outputs(log_p: Doubles, log_q: Doubles) -> dict[str, float]:
    """log-probabilities [samples, classes] of two models on the same samples."""
    if not len(log_p):
        return {"output_samples": 0.0}
    log_mean = np.logaddexp(log_p, log_q) - math.log(2)
    divergence = (_kl(log_p, log_mean) + _kl(log_q, log_mean)) / 2
    return {
        "output_divergence": float(divergence.mean()),
        "output_agreement": float(np.mean(log_p.argmax(axis=1) == log_q.argmax(axis=1))),
        "output_samples": float(len(log_p)),
    }


def _kl(log_p: Doubles, log_q: Doubles) -> Doubles:
    p = np.exp(log_p)
    found: Doubles = np.where(p > 0, p * (log_p - log_q), 0.0).sum(axis=1)
    return found
