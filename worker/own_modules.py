"""Modules of the data holder that are called like ours.

Lethe has top-level packages `services`, `worker`, `coordinator`, `migrations` and `lethe`, and Python keeps one module
of a name. A data holder's folder that uses such a name is imported in a context of its own, where whoever imports
decides what the name means: code of that folder gets the folder's modules, which are kept under a private package, and
all other code gets ours. Where the folder's package lacks a module, its code gets ours (`services.training.task`, say).
A folder without such names is imported as always.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

OURS: Final = ("services", "worker", "coordinator", "migrations", "lethe")
OUR_FOLDER: Final = Path(__file__).resolve().parents[1]


def clashing_names(folder: Path) -> frozenset[str]:
    """Names of ours that the folder has modules or packages of its own for."""
    if folder.resolve() == OUR_FOLDER:
        return frozenset()
    return frozenset(name for name in OURS if (folder / f"{name}.py").is_file() or any((folder / name).glob("**/*.py")))


class OwnModules(MetaPathFinder):
    """The import context of one folder."""

    _of_folders: Final[dict[Path, OwnModules]] = {}

    def __init__(self, folder: Path, names: frozenset[str]) -> None:
        self._folder, self._names = folder, names
        self._package = f"lethe_own_{hashlib.sha256(bytes(folder)).hexdigest()[:12]}"
        self._builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}
        root = ModuleType(self._package, f"Modules of {folder}")
        root.__path__ = [str(folder)]
        sys.modules[self._package] = root

    @classmethod
    def of(cls, folder: Path) -> OwnModules | None:
        """The folder's context; None when it needs none."""
        folder = folder.resolve()
        if folder not in cls._of_folders and (names := clashing_names(folder)):
            cls._of_folders[folder] = context = cls(folder, names)
            sys.meta_path.insert(0, context)
        return cls._of_folders.get(folder)

    def name_of(self, module: str) -> str:
        """What Python keeps the folder's module under."""
        return f"{self._package}.{module}" if module.partition(".")[0] in self._names else module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only for the folder's files: the same module, but executed in this context."""
        if fullname.partition(".")[0] in OURS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec if fullname.startswith(f"{self._package}.") else None
        return self.adopt(spec) if Path(spec.loader.path).resolve().is_relative_to(self._folder) else None

    def adopt(self, spec: ModuleSpec) -> ModuleSpec:
        assert isinstance(spec.loader, SourceFileLoader)
        spec.loader = _OwnLoader(spec.loader.name, spec.loader.path, self._builtins)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` as the folder's code sees it."""
        if level == 0 and (own := self.name_of(name)) != name:
            try:
                if fromlist:
                    return builtins.__import__(own, globals, locals, fromlist, 0)
                importlib.import_module(own)
                return sys.modules[self.name_of(name.partition(".")[0])]
            except ModuleNotFoundError as error:
                if error.name is None or not f"{own}.".startswith(f"{error.name}."):
                    raise  # it is there, and imports what is not
        return builtins.__import__(name, globals, locals, fromlist or (), level)


class _OwnLoader(SourceFileLoader):
    """Python asks `__builtins__` of a module's globals for `__import__`."""

    def __init__(self, fullname: str, path: str, own_builtins: dict[str, Any]) -> None:
        super().__init__(fullname, path)
        self._own_builtins = own_builtins

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._own_builtins
        super().exec_module(module)
