"""How a kernel says that its inputs cannot give a result, and how bytes are refused that are no safetensors file."""

from __future__ import annotations

from typing import NoReturn

from services.core.errors import Rejected


class KernelFailed(ValueError):
    """The inputs were read but no usable result follows from them. Running the kernel again gives the same failure."""


def refuse(why: str) -> NoReturn:
    raise Rejected(
        "not-safetensors",
        f"{why} Send a complete file as written by safetensors (save_file), never torch.save or pickle.",
    )
