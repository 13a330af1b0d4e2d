"""Models made of models: the weighted average sum_k(w_k * model_k) / sum_k(w_k), and the stack for an ensemble.

As in the server step, sums are taken in float64 in the order in which the models are listed, slice by slice: the result
is the same bytes on every machine and for every slice size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from services.tensors.codec import encode_header
from services.tensors.errors import KernelFailed
from services.tensors.inspection import are_finite
from services.tensors.layout import FLOATING, ITEM_BYTES, MAX_RANK, Layout, TensorInfo
from services.tensors.slices import (
    SLICE_ELEMENTS,
    Buffers,
    Bytes,
    Source,
    narrow,
    open_sources,
    slices_of,
    widen,
)
from services.tensors.streams import Stored, Writable


def merge_models(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: models ([{digest, weight}, ...], in order). Writes their weighted average to `out`.

    Integer and boolean tensors are those of the first model.
    """
    weights = [float(model["weight"]) for model in params["models"]]
    total = 0.0
    for weight in weights:  # not sum(): from Python 3.12 on it compensates, and digests would depend on the version
        total += weight
    if not total > 0 or not math.isfinite(total) or min(weights) < 0:
        raise KernelFailed(f"the weights of {len(weights)} models sum to {total}, or one is negative: no average")
    buffers = Buffers.allocate(slice_elements)
    with ExitStack() as stack:
        models, layout = _open_models(params, inputs, stack)
        out.write(encode_header(layout))
        for info in layout.tensors:
            for first, count in slices_of(info, slice_elements):
                raw = buffers.raw[: count * ITEM_BYTES[info.dtype]]
                offset = first * ITEM_BYTES[info.dtype]
                if info.dtype in FLOATING:
                    _average(models, weights, total, info, offset, raw, buffers)
                else:
                    models[0].read(raw.data, info.name, offset)
                out.write(raw.data)
    return {"num_models": float(len(models))}


def stack_models(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: models ([{digest}, ...], in order). Stacks each tensor along a new first axis in `out`."""
    if not params["models"]:
        raise KernelFailed("there are no models to stack")
    raw = np.empty(slice_elements * 8, np.uint8)
    with ExitStack() as stack:
        models, layout = _open_models(params, inputs, stack)
        if any(len(info.shape) >= MAX_RANK for info in layout.tensors):
            raise KernelFailed(f"a tensor has {MAX_RANK} axes already: there is no room for one more")
        stacked = Layout(tuple(info._replace(shape=(len(models), *info.shape)) for info in layout.tensors))
        out.write(encode_header(stacked))
        for info in layout.tensors:
            item_bytes = ITEM_BYTES[info.dtype]
            for model in models:
                for first, count in slices_of(info, slice_elements):
                    piece = raw[: count * item_bytes].data
                    model.read(piece, info.name, first * item_bytes)
                    out.write(piece)
    return {"num_models": float(len(models))}


def _open_models(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], stack: ExitStack
) -> tuple[list[Source], Layout]:
    """The models in the order listed, and the layout that they share."""
    digests = [model["digest"] for model in params["models"]]
    sources = open_sources(digests, inputs, stack)
    layout = sources[digests[0]].header.layout
    for digest, source in sources.items():
        if source.header.layout != layout:
            raise KernelFailed(f"model {digest} does not have the layout of the first model")
    return [sources[digest] for digest in digests], layout


def _average(
    models: Sequence[Source],
    weights: Sequence[float],
    total: float,
    info: TensorInfo,
    offset: int,
    raw: Bytes,
    buffers: Buffers,
) -> None:
    """Leave the average of one slice in `raw`."""
    count = len(raw) // ITEM_BYTES[info.dtype]
    term, mean = buffers.term[:count], buffers.mean[:count]
    mean.fill(0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        for model, weight in zip(models, weights, strict=True):
            model.read(raw.data, info.name, offset)
            widen(raw, info.dtype, term)
            np.multiply(term, weight, out=term)
            np.add(mean, term, out=mean)
        np.divide(mean, total, out=mean)
        narrow(mean, info.dtype, raw)
    if not (are_finite(mean.data, "F64") and are_finite(raw.data, info.dtype)):
        raise KernelFailed(f"tensor {info.name!r} of the merged model would contain NaN or Inf")
