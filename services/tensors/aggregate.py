"""The server step: new = base + scale * sum_k(w_k * delta_k) / sum_k(w_k), slice by slice.

Every sum is taken in float64, in the order in which the updates are listed, with plain multiply and add: the result is
the same bytes on every machine and for every slice size. Memory is a handful of slice buffers, whatever the number and
size of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
)
from services.tensors.streams import Stored, Writable


def weighted_step(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], out: Writable, *, slice_elements: int = SLICE_ELEMENTS
) -> dict[str, float]:
    """Kernel. params: base (digest), updates ([{digest, weight}, ...], in order), scale, and quantum if every number of
    the new model is to be rounded to a multiple of it. Writes the new model to `out`.

    An update with a `factor` is multiplied by it; its weight among the others stays. With `bounds` ({max_norm,
    large_updates}) updates above the norm are left out or scaled down to it, and where the new model would not be
    finite the largest are left out until it is. Without, that fails.

    Returns `update_norm`: the L2 norm of the step that was added to the base; `left_out:<i>` and `factor:<i>` for each
    update, counted from 0, that was left out or scaled down.
    """
    bounds, scale = params.get("bounds"), float(params["scale"])
    if not math.isfinite(scale):
        raise KernelFailed(f"the scale is {scale}: there is no step")
    with ExitStack() as stack:
        base = Source.open(inputs[params["base"]], stack)
        addends = _addends(params["updates"], base, inputs, stack)
        found = addends if bounds is None else _within(bounds, addends, slice_elements)
        step = _Step(base, found, scale, Buffers.allocate(slice_elements), params.get("quantum"))
        while True:
            try:
                step.write(out)
                break
            except _NotFinite:
                if bounds is None or not found:
                    raise
                out.restart()
                found = _without_largest(found, slice_elements)
                step = replace(step, addends=found, squared_norm=0.0)
    used = {addend.place: addend.factor for addend in found}
    return {
        "update_norm": math.sqrt(step.squared_norm),
        **{f"left_out:{place}": 1.0 for place in range(len(addends)) if place not in used},
        **{f"factor:{place}": factor for place, factor in used.items() if factor != addends[place].factor},
    }


class _NotFinite(KernelFailed):
    """The new model would contain NaN or Inf."""


@dataclass(frozen=True, slots=True)
class _Addend:
    place: int
    source: Source
    weight: float
    factor: float = 1.0


def _addends(
    listed: Sequence[Mapping[str, Any]], base: Source, inputs: Mapping[str, Stored], stack: ExitStack
) -> list[_Addend]:
    sources = open_sources([update["digest"] for update in listed], inputs, stack)
    updatable = base.header.layout.updatable()
    for digest, source in sources.items():
        if source.header.layout != updatable:
            raise KernelFailed(f"update {digest} does not have the layout of the model's floating-point tensors")
    addends = [
        _Addend(place, sources[update["digest"]], float(update["weight"]), float(update.get("factor") or 1.0))
        for place, update in enumerate(listed)
    ]
    total = _total(addends)
    if total == 0 or not all(math.isfinite(figure) for addend in addends for figure in (addend.weight, total)):
        raise KernelFailed(f"the weights of {len(addends)} updates sum to {total}: nothing can be averaged")
    return addends


def _total(addends: Sequence[_Addend]) -> float:
    total = 0.0
    for addend in addends:  # not sum(): from Python 3.12 on it compensates, and digests would depend on the version
        total += addend.weight
    return total


def _within(bounds: Mapping[str, Any], addends: Sequence[_Addend], slice_elements: int) -> list[_Addend]:
    most = bounds["max_norm"]
    if most is None:
        return list(addends)
    found = []
    for addend in addends:
        norm = _norm(addend, slice_elements)
        if norm <= most:
            found.append(addend)
        elif bounds["large_updates"] == "clip" and math.isfinite(norm):
            found.append(replace(addend, factor=most / norm))
    return found


def _without_largest(addends: Sequence[_Addend], slice_elements: int) -> list[_Addend]:
    """Leave out those whose norm is at least half of the largest: what makes a sum overflow is not small beside it."""
    norms = [_norm(addend, slice_elements) for addend in addends]
    return [addend for addend, norm in zip(addends, norms, strict=True) if norm < max(norms) / 2]


def _norm(addend: _Addend, slice_elements: int) -> float:
    """The norm in float64 over slices of a fixed size: the same for equal bytes, however they were uploaded."""
    squared, buffers = 0.0, Buffers.allocate(slice_elements)
    with np.errstate(over="ignore", invalid="ignore"):
        for info in addend.source.header.layout.tensors:
            for first, count in slices_of(info, slice_elements):
                raw, numbers = buffers.raw[: count * ITEM_BYTES[info.dtype]], buffers.term[:count]
                addend.source.read(raw.data, info.name, first * ITEM_BYTES[info.dtype])
                widen(raw, info.dtype, numbers)
                squared += float(np.einsum("i,i->", numbers, numbers))
    norm = addend.factor * math.sqrt(squared)
    return math.inf if math.isnan(norm) else norm


@dataclass
class _Step:
    base: Source
    addends: Sequence[_Addend]
    scale: float
    buffers: Buffers
    quantum: float | None = None
    squared_norm: float = 0.0

    def __post_init__(self) -> None:
        self._total = _total(self.addends)

    def write(self, out: Writable) -> None:
        out.write(encode_header(self.base.header.layout))
        for info in self.base.header.layout.tensors:
            self._write_tensor(info, out)

    def _write_tensor(self, info: TensorInfo, out: Writable) -> None:
        for first, count in slices_of(info, len(self.buffers.mean)):
            raw = self.buffers.raw[: count * ITEM_BYTES[info.dtype]]
            offset = first * ITEM_BYTES[info.dtype]
            if info.dtype in FLOATING:
                with np.errstate(over="ignore", invalid="ignore"):
                    self._average(info, offset, raw, count)
            else:
                self.base.read(raw.data, info.name, offset)
            out.write(raw.data)

    def _average(self, info: TensorInfo, offset: int, raw: Bytes, count: int) -> None:
        """Leave the new values of one slice in `raw`."""
        term, mean = self.buffers.term[:count], self.buffers.mean[:count]
        mean.fill(0.0)
        for addend in self.addends:
            addend.source.read(raw.data, info.name, offset)
            widen(raw, info.dtype, term)
            np.multiply(term, addend.weight * addend.factor, out=term)
            np.add(mean, term, out=mean)
        if self.addends:
            np.divide(mean, self._total, out=mean)
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
            raise _NotFinite(f"tensor {info.name!r} of the new model would contain NaN or Inf")
