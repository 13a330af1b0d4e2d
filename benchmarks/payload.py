"""What the clients of a benchmark send: safetensors of a given size, different for every client and round.

One large tensor shared by all and a small stamp behind it: hashing the next update costs microseconds, holding fifty
updates of 100 MB costs 100 MB, and to the server each one is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from services.tensors.codec import encode_header
from services.tensors.layout import Layout, TensorInfo

STAMP_ELEMENTS: Final = 16
MB: Final = 10**6


class Payload:
    def __init__(self, num_bytes: int, seed: int = 0) -> None:
        """About `num_bytes` (at least some hundred); the file is that size up to its header."""
        num_elements = max(1, num_bytes // 4 - STAMP_ELEMENTS)
        layout = Layout((TensorInfo("body", "F32", (num_elements,)), TensorInfo("stamp", "F32", (STAMP_ELEMENTS,))))
        values = np.random.default_rng(seed).standard_normal(num_elements, dtype=np.float32) * np.float32(1e-3)
        header = encode_header(layout)
        self._shared = memoryview(header + values.tobytes())
        self._hashed = hashlib.sha256(self._shared)
        self._header_bytes = len(header)
        self.file_bytes = len(self._shared) + 4 * STAMP_ELEMENTS
        self.raw_bytes = self.file_bytes - self._header_bytes

    def update(self, client: int, number: int) -> tuple[str, Sequence[memoryview]]:
        """Digest and pieces of the safetensors file of one client's `number`-th update."""
        stamp = self._stamp(client, number)
        hasher = self._hashed.copy()
        hasher.update(stamp)
        return f"sha256:{hasher.hexdigest()}", (self._shared, stamp)

    def raw(self, client: int, number: int) -> Sequence[memoryview]:
        """The same numbers without the header: float32 and nothing else."""
        return self._shared[self._header_bytes :], self._stamp(client, number)

    def write_model(self, path: Path) -> None:
        """A model of the same layout, to start from."""
        _, pieces = self.update(-1, 0)
        with path.open("wb") as file:
            for piece in pieces:
                file.write(piece)

    @staticmethod
    def _stamp(client: int, number: int) -> memoryview:
        return memoryview(np.resize(np.array([client, number], "<f4") / 1e6, STAMP_ELEMENTS).astype("<f4").tobytes())
