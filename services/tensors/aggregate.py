"""The server step: new = base + scale * sum_k(w_k * delta_k) / sum_k(w_k), slice by slice.

Every sum is taken in float64, in the order in which the updates are listed, with plain multiply and add: the result is
the same bytes on every machine and for every slice size. Memory is a handful of slice buffers, whatever the number and
size of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from services.tensors.codec import encode_header
from services.tensors.errors import KernelFailed
from services.tensors.inspection import are_finite
from services.tensors.layout import FLOATING, ITEM_BYTES, TensorInfo
from services.tensors.slices import (
    SLICE_ELEMENTS,
    Buffers,
    Bytes,
    Source,
    narrow,
    open_sources,
    slices_of,
    widen,
    write_all,
)


def weighted_step(
    params: Mapping[str, Any], inputs: Mapping[str, Path], out: Path, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: base (digest), updates ([{digest, weight}, ...], in order), scale, and quantum if every number of
    the new model is to be rounded to a multiple of it. Writes the new model to `out`.

    Returns `update_norm`: the L2 norm of the step that was added to the base.
    """
    weights = [float(update["weight"]) for update in params["updates"]]
    total = 0.0
    for weight in weights:  # not sum(): from Python 3.12 on it compensates, and digests would depend on the version
        total += weight
    if total == 0 or not all(math.isfinite(figure) for figure in (*weights, total, float(params["scale"]))):
        raise KernelFailed(f"the weights of {len(weights)} updates sum to {total}: nothing can be averaged")
    with ExitStack() as stack:
        base = Source.open(inputs[params["base"]], stack)
        sources = open_sources([update["digest"] for update in params["updates"]], inputs, stack)
        updatable = base.header.layout.updatable()
        for digest, source in sources.items():
            if source.header.layout != updatable:
                raise KernelFailed(f"update {digest} does not have the layout of the model's floating-point tensors")
        updates = [
            (sources[update["digest"]], weight) for update, weight in zip(params["updates"], weights, strict=True)
        ]
        file = stack.enter_context(out.open("wb", buffering=0))
        buffers = Buffers.allocate(slice_elements)
        step = _Step(base, updates, total, float(params["scale"]), file, buffers, params.get("quantum"))
        write_all(file, memoryview(encode_header(base.header.layout)))
        for info in base.header.layout.tensors:
            step.write_tensor(info)
    return {"update_norm": math.sqrt(step.squared_norm)}


@dataclass
class _Step:
    base: Source
    updates: Sequence[tuple[Source, float]]
    total: float
    scale: float
    file: FileIO
    buffers: Buffers
    quantum: float | None = None
    squared_norm: float = 0.0

    def write_tensor(self, info: TensorInfo) -> None:
        for first, count in slices_of(info, len(self.buffers.mean)):
            raw = self.buffers.raw[: count * ITEM_BYTES[info.dtype]]
            offset = first * ITEM_BYTES[info.dtype]
            if info.dtype in FLOATING:
                with np.errstate(over="ignore", invalid="ignore"):
                    self._average(info, offset, raw, count)
            else:
                self.base.read(raw.data, info.name, offset)
            write_all(self.file, raw.data)

    def _average(self, info: TensorInfo, offset: int, raw: Bytes, count: int) -> None:
        """Leave the new values of one slice in `raw`."""
        term, mean = self.buffers.term[:count], self.buffers.mean[:count]
        mean.fill(0.0)
        for source, weight in self.updates:
            source.read(raw.data, info.name, offset)
            widen(raw, info.dtype, term)
            np.multiply(term, weight, out=term)
            np.add(mean, term, out=mean)
        np.divide(mean, self.total, out=mean)
        np.multiply(mean, self.scale, out=mean)
        self.squared_norm += float(np.einsum("i,i->", mean, mean))
        self.base.read(raw.data, info.name, offset)
        widen(raw, info.dtype, term)
        np.add(term, mean, out=term)
        if self.quantum is not None:  # alpha * rint(x / alpha), halves to the even multiple
            np.divide(term, self.quantum, out=term)
            np.rint(term, out=term)
            np.multiply(term, self.quantum, out=term)
            np.add(term, 0.0, out=term)  # a zero has no sign: it would tell on which side it was
        narrow(term, info.dtype, raw)
        if not (are_finite(term.data, "F64") and are_finite(raw.data, info.dtype)):
            raise KernelFailed(f"tensor {info.name!r} of the new model would contain NaN or Inf")
