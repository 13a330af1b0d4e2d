"""A new file from old ones, element by element in float64, slice by slice; and norms taken the same way.

Like the server step, results are the same bytes on every machine: sums are numpy's pairwise reductions over slices of a
fixed size, never einsum or a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from services.core.errors import InvariantBroken
from services.tensors.codec import encode_header
from services.tensors.errors import KernelFailed
from services.tensors.inspection import are_finite
from services.tensors.layout import FLOATING, ITEM_BYTES, Layout, TensorInfo
from services.tensors.slices import SLICE_ELEMENTS, Doubles, Source, narrow, open_sources, slices_of, widen
from services.tensors.streams import Stored, Writable


@dataclass(frozen=True, slots=True)
class Window:
    """One slice of one tensor. Calling it with a source gives the numbers there, as float64."""

    info: TensorInfo
    first: int
    count: int

    def __call__(self, source: Source) -> Doubles:
        item_bytes = ITEM_BYTES[self.info.dtype]
        raw, numbers = np.empty(self.count * item_bytes, np.uint8), np.empty(self.count)
        source.read(raw.data, self.info.name, self.first * item_bytes)
        widen(raw, self.info.dtype, numbers)
        return numbers

    def onto(self, info: TensorInfo) -> Window:
        """The same range of another tensor of that shape."""
        return replace(self, info=info)


Combine = Callable[[Window], Doubles]

_STATISTICS = ("running_mean", "running_var")


def is_statistic(name: str) -> bool:
    """BatchNorm's running averages: they are averaged like weights and never rescaled."""
    return name.rpartition(".")[2] in _STATISTICS


def rewrite(
    base: Source | None, layout: Layout, out: Writable, combine: Combine, *, slice_elements: int = SLICE_ELEMENTS
) -> None:
    """Write the tensors of `layout`: floating ones as `combine` says, all others as they are in `base`."""
    raw = np.empty(slice_elements * 8, np.uint8)
    out.write(encode_header(layout))
    for info in layout.tensors:
        for first, count in slices_of(info, slice_elements):
            piece = raw[: count * ITEM_BYTES[info.dtype]]
            if info.dtype in FLOATING:
                with np.errstate(over="ignore", invalid="ignore"):
                    numbers = combine(Window(info, first, count))
                    narrow(numbers, info.dtype, piece)
                if not (are_finite(numbers.data, "F64") and are_finite(piece.data, info.dtype)):
                    raise KernelFailed(f"tensor {info.name!r} of the result would contain NaN or Inf")
            else:
                if base is None:
                    raise InvariantBroken(f"tensor {info.name!r} is not floating-point and has no source")
                base.read(piece.data, info.name, first * ITEM_BYTES[info.dtype])
            out.write(piece.data)


def norm(info: TensorInfo, combine: Combine, *, slice_elements: int = SLICE_ELEMENTS) -> float:
    """L2 norm of what `combine` makes of a tensor. KernelFailed unless it is finite."""
    found = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for first, count in slices_of(info, slice_elements):
            found += float(np.add.reduce(np.square(combine(Window(info, first, count)))))
    if not math.isfinite(found):
        raise KernelFailed(f"the norm of tensor {info.name!r} is not finite")
    return math.sqrt(found)


def total_norm(layout: Layout, combine: Combine, *, slice_elements: int = SLICE_ELEMENTS) -> float:
    """L2 norm over all floating tensors of a layout."""
    norms = [norm(info, combine, slice_elements=slice_elements) for info in layout.updatable().tensors]
    return math.sqrt(math.fsum(length**2 for length in norms))


def open_updates(
    params: Mapping[str, Any], inputs: Mapping[str, Stored], stack: ExitStack
) -> tuple[Layout, list[Source]]:
    """Kernels with params `model` and `updates` ([{digest, ...}, ...]): what of the model updates can change, and the
    updates in their order. Raises KernelFailed for an update that is not one of that model."""
    model = Source.open(inputs[params["model"]], stack).header.layout.updatable()
    digests = [update["digest"] for update in params["updates"]]
    opened = open_sources(digests, inputs, stack)
    for digest, source in opened.items():
        check_update(source, model, f"update {digest}")
    return model, [opened[digest] for digest in digests]


def check_update(source: Source, model: Layout, what: str) -> None:
    """An update holds the floating tensors of its model, and nothing else."""
    if source.header.layout != model.updatable():
        raise KernelFailed(f"{what} does not have the layout of the model's floating-point tensors")


def add_noise(numbers: Doubles, sigma: float, generator: np.random.Generator) -> Doubles:
    """Drawn in file order, so that the slices' size does not matter."""
    return numbers + sigma * generator.standard_normal(len(numbers)) if sigma else numbers


def weighted_sum(sources: Sequence[Source], weights: Sequence[float], window: Window) -> Doubles:
    """Σ weight · source over one slice, in the order given."""
    total = np.zeros(window.count)
    for source, weight in zip(sources, weights, strict=True):
        total += weight * window(source)
    return total
