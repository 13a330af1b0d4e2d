"""FUDP on the server: the channels with the largest scores are pruned, over all layers together.

An update holds a client's scores, each in all weights of its channel's filter (client.py). Pruned are the channels that
tell the class apart *best*: filter, bias, and what a normalisation right after the convolution adds to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np

from services.tensors.errors import KernelFailed
from services.tensors.layout import FLOATING, Layout, TensorInfo
from services.tensors.rewrite import Window, check_update, rewrite, weighted_sum
from services.tensors.slices import SLICE_ELEMENTS, Doubles, Source, open_sources, slices_of
from services.tensors.streams import Stored, Writable

Channel = tuple[str, int]
"""The tensor of a layer's filters, and the number of one of them."""


def prune_channels(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: model (digest), scores ([{digest, weight}, ...]), ratio. Writes the pruned model to `out`."""
    weights = [float(one["weight"]) for one in params["scores"]]
    total = math.fsum(weights)
    if not weights or min(weights) < 0 or not (total > 0 and math.isfinite(total)):
        raise KernelFailed(f"the weights of {len(weights)} clients' scores sum to {total}: there is no mean")
    with ExitStack() as stack:
        model = Source.open(inputs[params["model"]], stack)
        layout = model.header.layout
        digests = [one["digest"] for one in params["scores"]]
        opened = open_sources(digests, inputs, stack)
        for digest, source in opened.items():
            check_update(source, layout, f"scores {digest}")
        sources = [opened[digest] for digest in digests]

        def mean(window: Window) -> Doubles:
            return weighted_sum(sources, weights, window) / total

        filters = [info for info in layout.updatable().tensors if len(info.shape) >= 3]
        rated = {info.name: _scores(info, mean, slice_elements) for info in filters}
        rated = {name: scores for name, scores in rated.items() if scores.any()}
        pruned = choose(rated, float(params["ratio"]))
        if not pruned:
            raise KernelFailed("no channel tells the class apart, so that none is pruned; use NoT or retrain")
        zeros = _with_their_norms(pruned, layout)

        def combine(window: Window) -> Doubles:
            numbers = window(model)
            if window.info.name in zeros:
                row = math.prod(window.info.shape[1:])
                numbers[np.isin((window.first + np.arange(window.count)) // row, zeros[window.info.name])] = 0.0
            return numbers

        rewrite(model, layout, out, combine, slice_elements=slice_elements)
    return {"num_channels": float(sum(map(len, rated.values()))), "num_pruned": float(len(pruned))}


def choose(scores: Mapping[str, Doubles], ratio: float) -> list[Channel]:
    """The given share of all channels, at least one: those with the largest scores, if these are above 0. Each layer
    keeps one channel."""
    wanted = max(1, round(ratio * sum(map(len, scores.values()))))
    ordered = sorted((-float(score), name, j) for name, of_layer in scores.items() for j, score in enumerate(of_layer))
    left = {name: len(of_layer) for name, of_layer in scores.items()}
    chosen: list[Channel] = []
    for negated, name, channel in ordered:
        if len(chosen) == wanted or negated >= 0:
            break
        if left[name] > 1:
            left[name] -= 1
            chosen.append((name, channel))
    return chosen


def _scores(info: TensorInfo, mean: Callable[[Window], Doubles], slice_elements: int) -> Doubles:
    """The score of each filter: the mean over its weights, which all hold it."""
    row, sums = math.prod(info.shape[1:]), np.zeros(info.shape[0])
    for first, count in slices_of(info, slice_elements):
        rows = (first + np.arange(count)) // row
        sums += np.bincount(rows, weights=mean(Window(info, first, count)), minlength=info.shape[0])
    return sums / row


def _with_their_norms(pruned: list[Channel], layout: Layout) -> dict[str, list[int]]:
    """The rows to set to zero, by tensor: of the filters, their biases, and the normalisation that follows."""
    shapes = {info.name: info.shape for info in layout.tensors if info.dtype in FLOATING}
    modules = sorted({name.rpartition(".")[0] for name in shapes}, key=_in_order)
    following = dict(pairwise(modules))
    found: dict[str, list[int]] = {}
    for name, channel in pruned:
        module = name.rpartition(".")[0]
        beside = [f"{module}.bias", *(f"{following.get(module)}.{part}" for part in ("weight", "bias"))]
        for tensor in [name, *(one for one in beside if shapes.get(one) == shapes[name][:1])]:
            found.setdefault(tensor, []).append(channel)
    return found


def _in_order(module: str) -> list[tuple[int, str]]:
    """Names with numbers in them, in the order of these: files list tensors by name, models number their layers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", module)]
