"""Kernels that make clusters from a profiling round: `knot_profile` and `spectral_profile`.

Both read ω0 (for its layout) and every client's first update, and write no model: clusters start from ω0 itself.
params: base (digest of ω0), updates ([{client, digest, weight, seconds}, ...]), num_clusters, min_size, max_size, and
max_memberships, anchors (knot) or seed (spectral).
Figures: `cluster:<client>` is an index, with max_memberships > 1 `cluster:<client>:<j>` for j = 0, 1, ...
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.tensors.errors import KernelFailed
from services.tensors.slices import SLICE_ELEMENTS
from services.tensors.streams import Stored, Writable
from services.topology import knot, spectral
from services.topology.updates import Updates

BLOCK_ELEMENTS: Final = 2**20  # spectral_profile holds this many numbers of all clients at a time (8 MB)

Doubles = npt.NDArray[np.float64]


def knot_profile(params: dict[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    listed = params["updates"]
    with ExitStack() as stack:
        updates = Updates.open(inputs[params["base"]], [update["digest"] for update in listed], inputs, stack)
        disparities = measure_disparities(updates, [float(update["weight"]) for update in listed])
    times = [float(update["seconds"]) for update in listed]
    if not all(math.isfinite(time) and time >= 0 for time in times):
        raise KernelFailed("a profiling time is negative, NaN or Inf")
    levels, anchors = knot.profile_levels(times, disparities, params["num_clusters"], anchors=params["anchors"])
    max_memberships = params["max_memberships"]
    assignment = knot.assign(
        levels, min_size=params["min_size"], max_size=params["max_size"], max_memberships=max_memberships
    )
    names = [update["client"] for update in listed]
    return {
        **_cluster_figures(names, assignment, max_memberships),
        **anchors.figures(),
        **{f"disparity:{name}": value for name, value in zip(names, disparities, strict=True)},
    }


def spectral_profile(params: dict[str, Any], inputs: Mapping[str, Stored], out: Writable) -> dict[str, float]:
    listed = params["updates"]
    with ExitStack() as stack:
        updates = Updates.open(inputs[params["base"]], [update["digest"] for update in listed], inputs, stack)
        products = measure_products(updates)
    assignment = spectral.cluster(
        products,
        params["num_clusters"],
        params["seed"],
        min_size=params["min_size"],
        max_size=params["max_size"],
    )
    return _cluster_figures([update["client"] for update in listed], assignment, 1)


def measure_disparities(
    updates: Updates, weights: Sequence[float], *, slice_elements: int = SLICE_ELEMENTS
) -> list[float]:
    """S_k of every client; ω1 − ω0 is the weighted mean of the updates. Each slice is read twice."""
    total = math.fsum(weights)
    if not (total > 0 and math.isfinite(total)):
        raise KernelFailed(f"the weights of {len(weights)} updates sum to {total}: there is no common step")
    num_clients = len(updates.sources)
    product_K, squared_K, step_squared = np.zeros(num_clients), np.zeros(num_clients), 0.0
    for part in updates.slices(slice_elements):
        step = np.zeros(part.length)
        for k in range(num_clients):
            step += weights[k] * updates.read(k, part)
        step /= total
        step_squared += float(np.einsum("i,i->", step, step))
        for k in range(num_clients):
            delta = updates.read(k, part)
            product_K[k] += np.einsum("i,i->", step, delta)
            squared_K[k] += np.einsum("i,i->", delta, delta)
    _check_finite(product_K, squared_K, np.array(step_squared))
    return [
        knot.disparity_from_products(product, step_squared, squared)
        for product, squared in zip(product_K.tolist(), squared_K.tolist(), strict=True)
    ]


def measure_products(updates: Updates, *, block_elements: int = BLOCK_ELEMENTS) -> Doubles:
    """Inner products of all pairs of updates, [K, K]."""
    num_clients = len(updates.sources)
    product_KK = np.zeros((num_clients, num_clients))
    for part in updates.slices(max(1, min(SLICE_ELEMENTS, block_elements // num_clients))):
        block = np.stack([updates.read(k, part) for k in range(num_clients)])
        product_KK += block @ block.T
    _check_finite(product_KK)
    return product_KK


def _check_finite(*arrays: Doubles) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise KernelFailed("a profiling update contains NaN or Inf, or is too large to be measured")


def _cluster_figures(
    names: Sequence[str], assignment: Sequence[tuple[int, ...]], max_memberships: int
) -> dict[str, float]:
    if max_memberships == 1:
        return {f"cluster:{name}": float(index) for name, (index,) in zip(names, assignment, strict=True)}
    return {
        f"cluster:{name}:{j}": float(index)
        for name, indices in zip(names, assignment, strict=True)
        for j, index in enumerate(indices)
    }
