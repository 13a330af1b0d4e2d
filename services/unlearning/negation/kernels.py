"""NoT on the server: the named tensors, or the first layer's weights, with their signs turned round."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from services.tensors.errors import KernelFailed
from services.tensors.layout import FLOATING, Layout
from services.tensors.rewrite import Window, norm, rewrite
from services.tensors.slices import SLICE_ELEMENTS, Doubles, Source
from services.tensors.streams import Stored, Writable


def negate_layers(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: model (digest), layers (tensor names, or None for the first layer). Writes the model to `out`."""
    with ExitStack() as stack:
        model = Source.open(inputs[params["model"]], stack)
        layout = model.header.layout
        layers = params["layers"] or [first_layer(layout)]
        floating = {info.name: info for info in layout.tensors if info.dtype in FLOATING}
        for name in layers:
            if name not in floating:
                raise KernelFailed(f"the model has no floating-point tensor {name!r} to negate")
            if norm(floating[name], lambda window: window(model), slice_elements=slice_elements) == 0:
                raise KernelFailed(f"tensor {name!r} is all zeros: negating it would change nothing")

        def negate(window: Window) -> Doubles:
            return -window(model) if window.info.name in layers else window(model)

        rewrite(model, layout, out, negate, slice_elements=slice_elements)
    return {"num_negated": float(sum(floating[name].num_elements for name in set(layers)))}


def first_layer(layout: Layout) -> str:
    """Files list tensors by name, not by depth. Models built as a sequence number their layers, so there the order is
    known; elsewhere the request must name the layer."""
    names = [info.name for info in layout.tensors if info.dtype in FLOATING and len(info.shape) >= 2]
    numbered = [(int(found.group(1)), name) for name in names if (found := re.match(r"(\d+)\.", name))]
    if not names or len(numbered) < len(names):
        raise KernelFailed(f"which layer comes first cannot be told from the names {', '.join(names[:5])}; name it")
    return min(numbered)[1]
