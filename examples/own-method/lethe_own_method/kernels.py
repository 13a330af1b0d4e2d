"""Mathematics of the server: w' = w − Σ weight · Δ, over stored files, slice by slice."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from services.tensors.rewrite import Window, check_update, rewrite, weighted_sum
from services.tensors.slices import Doubles, Source, open_sources
from services.tensors.streams import Stored, Writable


def scale_out_updates(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: model (digest), updates ([{digest, weight}, ...]). Writes the model without them to `out`."""
    digests = [update["digest"] for update in params["updates"]]
    weights = [float(update["weight"]) for update in params["updates"]]
    with ExitStack() as stack:
        model = Source.open(inputs[params["model"]], stack)
        opened = open_sources(digests, inputs, stack)
        for digest, source in opened.items():
            check_update(source, model.header.layout, f"update {digest}")
        updates = [opened[digest] for digest in digests]

        def without(window: Window) -> Doubles:
            return window(model) - weighted_sum(updates, weights, window)

        rewrite(model, model.header.layout, out, without)
    return {"num_scaled_out": float(len(updates))}
