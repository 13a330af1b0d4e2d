"""Kernels over plain files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from services.methods.running import run_kernel
from services.tensors.streams import FileWriter, StoredFile


def over_files(
    kernel: Callable[..., dict[str, float]],
    params: Mapping[str, Any],
    files: Mapping[str, Path],
    out: Path,
    **options: Any,
) -> dict[str, float]:
    """The kernel's figures; what it makes is then in `out`."""
    with FileWriter(out) as writer:
        return kernel(params, {name: StoredFile(path) for name, path in files.items()}, writer, **options)


def run_over_files(name: str, params: dict[str, Any], files: Mapping[str, Path], out: Path) -> dict[str, float]:
    """The kernel of that name."""
    return over_files(partial(run_kernel, name), params, files, out)
