"""PGA on the server: the reference model without the leaver's last update, and the radius of the ball around it.

With s the server's learning rate and p the leavers' shares of the head's round, in deltas:

    w_ref = w + (P · (w − base) − s · Σ p_u Δ_u) / (1 − P),   P = Σ p_u

which for s = 1 is (W·w − n_u·w_u) / (W − n_u).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from services.tensors.errors import KernelFailed
from services.tensors.rewrite import Window, check_update, rewrite, total_norm, weighted_sum
from services.tensors.slices import SLICE_ELEMENTS, Doubles, Source, open_sources
from services.tensors.streams import Stored, Writable


def pga_reference(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: head, base (digests), scale, leavers ([{digest, share}, ...]). Writes w_ref to `out`.

    Returns `reference_distance`: how far the reference is from the head.
    """
    shares = [float(leaver["share"]) for leaver in params["leavers"]]
    total, scale = math.fsum(shares), float(params["scale"])
    if not shares or min(shares) < 0 or not 0 <= total < 1:
        raise KernelFailed(f"the leavers hold {total} of the round's weight: nothing is left for a reference")
    with ExitStack() as stack:
        head, base = (Source.open(inputs[params[name]], stack) for name in ("head", "base"))
        if head.header.layout != base.header.layout:
            raise KernelFailed("head and base do not have the same layout")
        digests = [leaver["digest"] for leaver in params["leavers"]]
        opened = open_sources(digests, inputs, stack)
        for digest, source in opened.items():
            check_update(source, head.header.layout, f"update {digest}")
        sources = [opened[digest] for digest in digests]

        def correction(window: Window) -> Doubles:
            moved = window(head) - window(base)
            return (total * moved - scale * weighted_sum(sources, shares, window)) / (1 - total)

        layout = head.header.layout
        rewrite(head, layout, out, lambda window: window(head) + correction(window), slice_elements=slice_elements)
        distance = total_norm(layout, correction, slice_elements=slice_elements)
    return {"reference_distance": distance}


def pga_radius(params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. params: model (a ModelSpec as JSON), reference (digest), seeds. Figures only: `radius`.

    r = √(mean over random models ‖w_ref − init‖² / 3), the models being those that the seeds initialise.
    """
    import torch

    from services.models.build import build
    from services.models.weights import load_weights
    from services.wire.v1.runs import ModelSpec

    spec = ModelSpec.model_validate(params["model"])
    reference = build(spec, seed=0)
    load_weights(reference, inputs[params["reference"]])
    squares = []
    for seed in params["seeds"]:
        pairs = zip(reference.parameters(), build(spec, seed).parameters(), strict=True)
        with torch.no_grad():
            squares.append(math.fsum(float(torch.sum((a.double() - b.double()) ** 2)) for a, b in pairs))
    radius = math.sqrt(math.fsum(squares) / len(squares) / 3) if squares else math.nan
    if not (radius > 0 and math.isfinite(radius)):
        raise KernelFailed(f"the radius of the ball would be {radius}")
    return {"radius": radius}
