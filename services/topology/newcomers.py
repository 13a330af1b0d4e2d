"""Kernels that measure a client which joins later: `knot_newcomer` and `spectral_newcomer`.

Both compare its update from ω0 with the profiling updates that are still kept, and write no model.
params: base (digest of ω0), newcomer ({digest, seconds}), updates ([{client, digest, weight}, ...]), num_clusters, and
figures (what the profiling kernel reported). Figures: `distance:<n>` to each cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from services.tensors.errors import KernelFailed
from services.tensors.slices import SLICE_ELEMENTS
from services.tensors.streams import Stored, Writable
from services.tensors.updates import Slice, Updates, measure_products
from services.topology import knot, spectral
from services.topology.plan import clusters_of


def knot_newcomer(params: dict[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """Kernel. The newcomer's distance to each anchor, with the normalisation of the profiling round. Without any kept
    update nothing says which way the others pull, and the disparity is 0.5."""
    seconds = float(params["newcomer"]["seconds"])
    if not (math.isfinite(seconds) and seconds >= 0):
        raise KernelFailed("the profiling time is negative, NaN or Inf")
    anchors = knot.Anchors.from_figures(params["figures"])
    disparity = _disparity(params, inputs)
    (distances,) = anchors.distances([seconds], [disparity]).tolist()
    return {f"distance:{n}": distance for n, distance in enumerate(distances)}


def spectral_newcomer(params: dict[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    """1 − the mean cosine with the kept updates of each cluster; 1 where none is kept."""
    clusters = clusters_of(params["figures"])
    with ExitStack() as stack:
        products_KK = measure_products(_open(params, inputs, stack))
    cosine_K = spectral.cosines(products_KK)[-1]
    by_cluster: dict[int, list[float]] = {n: [] for n in range(params["num_clusters"])}
    for update, cosine in zip(params["updates"], cosine_K[:-1].tolist(), strict=True):
        for n in clusters.get(update["client"], ()):
            by_cluster[n].append(cosine)
    return {
        f"distance:{n}": 1.0 - (math.fsum(cosines) / len(cosines) if cosines else 0.0)
        for n, cosines in by_cluster.items()
    }


def _open(params: dict[str, Any], inputs: Mapping[str, Stored], stack: ExitStack) -> Updates:
    """The kept updates, and the newcomer's at the end."""
    digests = [*(update["digest"] for update in params["updates"]), params["newcomer"]["digest"]]
    return Updates.open(inputs[params["base"]], digests, inputs, stack)


def _disparity(params: dict[str, Any], inputs: Mapping[str, Stored]) -> float:
    """S of the newcomer; ω1 − ω0 is the weighted mean of the kept updates."""
    weights = [float(update["weight"]) for update in params["updates"]]
    product = step_squared = own_squared = 0.0
    with ExitStack() as stack:
        updates = _open(params, inputs, stack)
        for part in updates.slices(SLICE_ELEMENTS):
            step = _weighted_sum(updates, weights, part)
            own = updates.read(len(weights), part)
            product += float(np.einsum("i,i->", step, own))
            step_squared += float(np.einsum("i,i->", step, step))
            own_squared += float(np.einsum("i,i->", own, own))
    if not all(map(math.isfinite, (product, step_squared, own_squared))):
        raise KernelFailed("a profiling update contains NaN or Inf, or is too large to be measured")
    return knot.disparity_from_products(product, step_squared, own_squared)


def _weighted_sum(updates: Updates, weights: Sequence[float], part: Slice) -> npt.NDArray[np.float64]:
    total = np.zeros(part.length)
    for k, weight in enumerate(weights):
        total += weight * updates.read(k, part)
    return total
