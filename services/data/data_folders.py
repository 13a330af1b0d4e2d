"""Where data files are looked for: here, in the folders of LETHE_DATA, and where `lethe data get` puts them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from services.data.dataset import DataUnusable

VARIABLE: Final = "LETHE_DATA"
NAMED: Final = {"mnist": "mnist.npz", "fashion-mnist": "fashion_mnist.npz", "cifar10": "cifar10.npz"}
"""Sets that `lethe data get NAME` fetches; each is also a data source by its name."""


def folders_of(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Several folders in the variable are separated as in PATH."""
    named = [Path(text).expanduser() for text in environment.get(VARIABLE, "").split(os.pathsep) if text]
    return (*named, default_folder(environment))


def default_folder(environment: Mapping[str, str]) -> Path:
    share = environment.get("XDG_DATA_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".local" / "share"
    return Path(share) / "lethe" / "data"


def find(path_text: str, folders: Sequence[Path]) -> Path:
    path = Path(path_text).expanduser()
    for folder in (Path.cwd(), *folders):
        if (folder / path).is_file():
            return folder / path
    looked_in = "" if path.is_absolute() else f" (looked in {', '.join(map(str, (Path.cwd(), *folders)))})"
    name = next((name for name, file in NAMED.items() if file == path.name), None)
    advice = f"`lethe data get {name}` fetches it, or" if name else "check the path after the colon, or"
    raise DataUnusable(f"no file {path}{looked_in}; {advice} name its folder in {VARIABLE}")
