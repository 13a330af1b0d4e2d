"""FedRecovery on the server: running residuals of every client, and their removal.

In deltas, with p_u the client's share of round i, Δ̄ the round's mean update and s the server's learning rate, taking u
out of round i would have moved the model by

    −δ_i(u) = s · p_u / (1 − p_u) · (Δ̄_i − Δ_i(u))            (−s · Δ̄_i if u was alone)

The result is w + Σ_i ‖Δ̄_i‖² (−δ_i) / Σ_i ‖Δ̄_i‖² + noise. Both sums run along with training: one vector per client and
one number, in one file: tensors `CLIENT/TENSOR` (float32) and `squared_norm` (float64).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from services.core.seeds import derive
from services.tensors.errors import KernelFailed
from services.tensors.layout import Layout, TensorInfo
from services.tensors.rewrite import Window, add_noise, open_updates, rewrite, total_norm, weighted_sum
from services.tensors.slices import SLICE_ELEMENTS, Doubles, Source
from services.tensors.streams import Stored, Writable

SQUARED_NORM: Final = TensorInfo("squared_norm", "F64", (1,))


def accumulate_residuals(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: model, residuals (digest or None), updates ([{client, digest, weight, factor}, ...]), scale.

    Writes the residuals after one more round to `out`. Returns `squared_norm`, the sum of the weights so far.
    """
    members = {update["client"]: k for k, update in enumerate(params["updates"])}
    weights = [float(update["weight"]) for update in params["updates"]]
    total, scale = math.fsum(weights), float(params["scale"])
    if not (weights and min(weights) >= 0 and total > 0 and math.isfinite(total)):
        raise KernelFailed(f"the weights of {len(weights)} updates sum to {total}: there was no step")
    shares = [weight / total for weight in weights]
    factors = [float(update.get("factor") or 1.0) for update in params["updates"]]
    parts = [share * factor for share, factor in zip(shares, factors, strict=True)]
    with ExitStack() as stack:
        model, sources = open_updates(params, inputs, stack)
        old = None if params["residuals"] is None else Source.open(inputs[params["residuals"]], stack)

        def step(window: Window) -> Doubles:
            return weighted_sum(sources, parts, window)

        weight = total_norm(model, step, slice_elements=slice_elements) ** 2
        squared_norm = (0.0 if old is None else _squared_norm(old)) + weight
        own = {info.name: info for info in model.tensors}

        def residual(window: Window) -> Doubles:
            if window.info == SQUARED_NORM:
                return np.array([squared_norm])
            client, _, name = window.info.name.partition("/")
            known = old is not None and window.info.name in old.starts
            before = window(old) if known and old is not None else np.zeros(window.count)
            if client not in members:
                return before
            k, there = members[client], window.onto(own[name])
            mean, share = step(there), shares[members[client]]
            taken_out = -mean if share == 1 else share / (1 - share) * (mean - factors[k] * there(sources[k]))
            return before + weight * scale * taken_out

        clients = set(members) | (set() if old is None else _clients(old))
        rewrite(None, residuals_layout(model, clients), out, residual, slice_elements=slice_elements)
    return {"squared_norm": squared_norm}


def remove_residuals(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: head, residuals (digests), leavers (names), noise (σ), seed. Writes the mended model to `out`.

    Several leavers: their residuals are added up. Returns `removed_norm` and `noise`.
    """
    sigma = float(params["noise"])
    generator = np.random.default_rng(derive(params["seed"], "fedrecovery"))
    with ExitStack() as stack:
        head = Source.open(inputs[params["head"]], stack)
        residuals = Source.open(inputs[params["residuals"]], stack)
        model = head.header.layout.updatable()
        missing = sorted(set(params["leavers"]) - _clients(residuals))
        if missing or not params["leavers"]:
            raise KernelFailed(f"there are no residuals of {', '.join(missing) or 'anybody'}")
        if residuals.header.layout != residuals_layout(model, _clients(residuals)):
            raise KernelFailed("the residuals do not have the layout of the model")
        squared_norm = _squared_norm(residuals)
        if not squared_norm > 0:
            raise KernelFailed("all steps so far have length zero: there is nothing to weigh the residuals by")
        own = {info.name: info for info in model.tensors}

        def correction(window: Window) -> Doubles:
            info = own[window.info.name]
            there = (window.onto(_residual_info(client, info)) for client in sorted(params["leavers"]))
            return sum((found(residuals) for found in there), np.zeros(window.count)) / squared_norm

        def mended(window: Window) -> Doubles:
            return add_noise(window(head) + correction(window), sigma, generator)

        rewrite(head, head.header.layout, out, mended, slice_elements=slice_elements)
        removed = total_norm(model, correction, slice_elements=slice_elements)
    return {"removed_norm": removed, "noise": sigma}


def residuals_layout(model: Layout, clients: set[str]) -> Layout:
    infos = [_residual_info(client, info) for client in clients for info in model.updatable().tensors]
    return Layout(tuple(sorted([SQUARED_NORM, *infos])))


def _residual_info(client: str, info: TensorInfo) -> TensorInfo:
    return TensorInfo(f"{client}/{info.name}", "F32", info.shape)


def _clients(residuals: Source) -> set[str]:
    return {name.partition("/")[0] for name in residuals.starts if name != SQUARED_NORM.name}


def _squared_norm(residuals: Source) -> float:
    return float(Window(SQUARED_NORM, 0, 1)(residuals)[0])
