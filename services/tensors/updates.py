"""The updates that clients made of one model, read slice by slice, so that memory does not grow with the model; and
their inner products, which say how alike they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from services.tensors.errors import KernelFailed
from services.tensors.layout import ITEM_BYTES, TensorInfo
from services.tensors.slices import SLICE_ELEMENTS, Source, open_sources, slices_of, widen
from services.tensors.streams import Stored

BLOCK_ELEMENTS: Final = 2**20  # `measure_products` holds this many numbers of all clients at a time (8 MB)

Doubles = npt.NDArray[np.float64]


class Slice(NamedTuple):
    tensor: TensorInfo
    first: int
    length: int


@dataclass(frozen=True)
class Updates:
    """Files of one layout, in the order of the clients."""

    sources: Sequence[Source]
    tensors: Sequence[TensorInfo]

    @classmethod
    def open(cls, base: Stored, digests: Sequence[str], inputs: Mapping[str, Stored], stack: ExitStack) -> Updates:
        """Updates that fit the model in `base`; `stack` closes them."""
        layout = Source.open(base, stack).header.layout.updatable()
        sources = open_sources(digests, inputs, stack)
        for digest, source in sources.items():
            if source.header.layout != layout:
                raise KernelFailed(f"update {digest} does not have the layout of the model's floating-point tensors")
        return cls([sources[digest] for digest in digests], layout.tensors)

    def slices(self, slice_elements: int = SLICE_ELEMENTS) -> Iterator[Slice]:
        for info in self.tensors:
            for first, length in slices_of(info, slice_elements):
                yield Slice(info, first, length)

    def read(self, index: int, part: Slice) -> Doubles:
        """The numbers of one client in one slice."""
        item_bytes = ITEM_BYTES[part.tensor.dtype]
        raw, numbers = np.empty(part.length * item_bytes, np.uint8), np.empty(part.length)
        self.sources[index].read(raw.data, part.tensor.name, part.first * item_bytes)
        widen(raw, part.tensor.dtype, numbers)
        return numbers


def measure_products(updates: Updates, *, block_elements: int = BLOCK_ELEMENTS) -> Doubles:
    """Inner products of all pairs of updates, [K, K]."""
    num_clients = len(updates.sources)
    product_KK = np.zeros((num_clients, num_clients))
    for part in updates.slices(max(1, min(SLICE_ELEMENTS, block_elements // num_clients))):
        block = np.stack([updates.read(k, part) for k in range(num_clients)])
        product_KK += block @ block.T
    check_finite(product_KK)
    return product_KK


def check_finite(*arrays: Doubles) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise KernelFailed("a profiling update contains NaN or Inf, or is too large to be measured")
