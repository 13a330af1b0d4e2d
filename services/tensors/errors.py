"""How a kernel says that its inputs cannot give a result."""

from __future__ import annotations


class KernelFailed(ValueError):
    """The inputs were read but no usable result follows from them. Running the kernel again gives the same failure."""
