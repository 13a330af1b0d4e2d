"""The updates of a profiling round, read slice by slice, so that memory does not grow with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.tensors.errors import KernelFailed
from services.tensors.layout import ITEM_BYTES, TensorInfo
from services.tensors.slices import SLICE_ELEMENTS, Source, open_sources, slices_of, widen
from services.tensors.streams import Stored


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

    def read(self, index: int, part: Slice) -> npt.NDArray[np.float64]:
        """The numbers of one client in one slice."""
        item_bytes = ITEM_BYTES[part.tensor.dtype]
        raw, numbers = np.empty(part.length * item_bytes, np.uint8), np.empty(part.length)
        self.sources[index].read(raw.data, part.tensor.name, part.first * item_bytes)
        widen(raw, part.tensor.dtype, numbers)
        return numbers
