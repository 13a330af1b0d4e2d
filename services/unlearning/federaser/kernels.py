"""FedEraser's calibrated update: per layer, the length of the stored update in the direction of the new one.

    Δ̂ = ‖Δ‖ · Δ̃ / ‖Δ̃‖        Δ stored, Δ̃ from calibration training, layer by layer

The server step itself is `weighted_step` over the calibrated updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from services.tensors.errors import KernelFailed
from services.tensors.layout import TensorInfo
from services.tensors.rewrite import Window, check_update, is_statistic, norm, rewrite
from services.tensors.slices import SLICE_ELEMENTS, Doubles, Source, open_sources
from services.tensors.streams import Stored, Writable

ZERO_NORM: Final = 1e-12
"""A layer shorter than this has no direction; it is taken as it is, and counted."""


def calibrate_update(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: model, update (Δ̃), stored ([digests]). Writes Δ̂ to `out`.

    `stored` is the client's own update; with several, their median norm per layer is used (a client that did not take
    part in that round). Returns `num_layers`, `num_zero_norm` and `calibrated_norm`.
    """
    if not params["stored"]:
        raise KernelFailed("there is no stored update to take the length from")
    with ExitStack() as stack:
        model = Source.open(inputs[params["model"]], stack).header.layout
        new = Source.open(inputs[params["update"]], stack)
        check_update(new, model, f"update {params['update']}")
        stored = open_sources(params["stored"], inputs, stack)
        for digest, source in stored.items():
            check_update(source, model, f"stored update {digest}")
        factors: dict[str, float] = {}
        squared, num_zero = 0.0, 0
        for info in model.updatable().tensors:
            length = _norm(info, new, slice_elements)
            factor = 1.0
            if length < ZERO_NORM:
                num_zero += 1
            elif not is_statistic(info.name):
                wanted = median(_norm(info, stored[digest], slice_elements) for digest in params["stored"])
                factor = wanted / length
            factors[info.name] = factor
            squared += (factor * length) ** 2

        def scale(window: Window) -> Doubles:
            return factors[window.info.name] * window(new)

        rewrite(new, new.header.layout, out, scale, slice_elements=slice_elements)
    return {
        "num_layers": float(len(factors)),
        "num_zero_norm": float(num_zero),
        "calibrated_norm": squared**0.5,
    }


def _norm(info: TensorInfo, source: Source, slice_elements: int) -> float:
    return norm(info, lambda window: window(source), slice_elements=slice_elements)
