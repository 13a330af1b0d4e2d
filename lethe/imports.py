"""Ours stay ours: `services`, `worker` and `coordinator` are common names, and a directory that stands before the
installation on Python's path (PYTHONPATH, or the working directory of `python -m`) may hold others of these names.

What the data holder's own code gets to see under these names is worker/own_modules.py's concern.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

OURS: Final = frozenset({"services", "worker", "coordinator", "migrations"})
OUR_FOLDER: Final = str(Path(__file__).resolve().parents[1])


class _OursFirst(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [OUR_FOLDER], target) if fullname in OURS else None


def prefer_ours() -> None:
    """From now on our packages are imported from where this one lies."""
    if not any(isinstance(finder, _OursFirst) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OursFirst())
