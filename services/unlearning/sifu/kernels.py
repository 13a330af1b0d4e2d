"""SIFU on the server: how far each update lies from its round's new model, and the noise on the model gone back to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from services.core.seeds import derive
from services.tensors.errors import KernelFailed
from services.tensors.rewrite import Window, add_noise, open_updates, rewrite, total_norm, weighted_sum
from services.tensors.slices import SLICE_ELEMENTS, Doubles, Source
from services.tensors.streams import Stored, Writable


def measure_distances(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: model, updates ([{client, digest, weight, factor}, ...]), scale. Figures only:
    `distance:<client>`.

    ‖θ_new − θ_k‖ = ‖s·Δ̄ − Δ_k‖ as both start from the same model; a stale update is measured as if it had.
    """
    weights = [float(update["weight"]) for update in params["updates"]]
    total, scale = math.fsum(weights), float(params["scale"])
    if not (weights and total > 0 and math.isfinite(total)):
        raise KernelFailed(f"the weights of {len(weights)} updates sum to {total}: there was no step")
    factors = [float(update.get("factor") or 1.0) for update in params["updates"]]
    shares = [scale * weight / total * factor for weight, factor in zip(weights, factors, strict=True)]
    with ExitStack() as stack:
        model, sources = open_updates(params, inputs, stack)
        squares = np.zeros(len(sources))

        def tally(window: Window) -> Doubles:
            step = weighted_sum(sources, shares, window)
            for k, source in enumerate(sources):
                squares[k] += np.add.reduce(np.square(step - factors[k] * window(source)))
            return step

        total_norm(model, tally, slice_elements=slice_elements)
    if not np.isfinite(squares).all():
        raise KernelFailed("an update is too far from the new model to be measured")
    names = [update["client"] for update in params["updates"]]
    return {f"distance:{name}": math.sqrt(square) for name, square in zip(names, squares.tolist(), strict=True)}


def add_gaussian_noise(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: model (digest), noise (σ), seed. Writes the model with noise on every weight to `out`."""
    sigma = float(params["noise"])
    generator = np.random.default_rng(derive(params["seed"], "sifu"))
    with ExitStack() as stack:
        model = Source.open(inputs[params["model"]], stack)

        def noisy(window: Window) -> Doubles:
            return add_noise(window(model), sigma, generator)

        rewrite(model, model.header.layout, out, noisy, slice_elements=slice_elements)
    return {"noise": sigma}
