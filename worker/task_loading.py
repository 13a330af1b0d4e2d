"""From `--task` and `--data` to the object that knows the client's model, batches and loss.

`builtin:…` is a classifier over a data source; `FILE.py:Class` or `package.module:Class` is the data holder's own
class, loaded from this machine (the coordinator never sends code) and checked against the protocol before any work is
claimed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from worker.own_modules import OURS, OwnModules, clashing_names

if TYPE_CHECKING:
    from services.audit.spec import Canary
    from services.training.task import ClientTask

PROTOCOL_MEMBERS: Final = ("model", "num_train", "num_eval", "train_batches", "eval_batches", "loss", "score")
_SAMPLE_AXES: Final = {"image-classifier": ("channels", "height", "width"), "tabular-classifier": ("features",)}


class TaskUnusable(Exception):
    """The task or its data cannot be loaded; the message says what to change."""


def load_task(task: str, data: str | None, folders: Sequence[Path] = (), canary: Canary | None = None) -> ClientTask:
    """Slow: imports torch and reads the data. Raises TaskUnusable."""
    kind, _, name = task.partition(":")
    if kind == "builtin":
        return _load_builtin(name, data, folders, canary)
    if canary is not None:
        raise TaskUnusable("only built-in tasks carry a canary: put it into your data, and have it registered")
    return _load_own(task, data)


def _load_builtin(name: str, data: str | None, folders: Sequence[Path], canary: Canary | None) -> ClientTask:
    from services.audit.canaries import with_canary
    from services.data.sources import DataUnusable, load
    from services.training.task import BUILTIN_TASKS

    if name not in BUILTIN_TASKS:
        known = ", ".join(f"builtin:{known}" for known in BUILTIN_TASKS)
        raise TaskUnusable(f"no built-in task {name!r}; there are {known}")
    if data is None:
        raise TaskUnusable(f"builtin:{name} needs data: --data npz:FILE, csv:FILE, tsv:FILE, text:FILE or digits")
    try:
        dataset = load(data, folders)
    except DataUnusable as error:
        raise TaskUnusable(str(error)) from error
    if (axes := _SAMPLE_AXES.get(name)) and dataset.x_train.ndim - 1 != len(axes):
        shape = dataset.x_train.shape[1:]
        raise TaskUnusable(f"builtin:{name} takes samples of shape ({', '.join(axes)}); those of {data} have {shape}")
    try:
        carried = dataset if canary is None else with_canary(dataset, canary)
    except ValueError as error:
        raise TaskUnusable(f"the canary does not fit {data}: {error}") from error
    return BUILTIN_TASKS[name](carried, folders)


def _load_own(task: str, data: str | None) -> ClientTask:
    place, _, class_name = task.rpartition(":")
    if not place or not class_name:
        raise TaskUnusable(f"--task {task}: write builtin:NAME, path/to/file.py:ClassName or package.module:ClassName")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    factory = getattr(module, class_name, None)
    if not callable(factory):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise TaskUnusable(f"{place} has no class {class_name}; it has {', '.join(classes) or 'no classes'}")
    try:
        own = factory() if data is None else factory(data)
    except Exception as error:
        raise TaskUnusable(f"{class_name}({data!r} as its data) raised {type(error).__name__}: {error}") from error
    if missing := [name for name in PROTOCOL_MEMBERS if not hasattr(own, name)]:
        raise TaskUnusable(f"{class_name} lacks {', '.join(missing)}: see the ClientTask protocol in worker/README.md")
    loaded: ClientTask = own
    return loaded


def _import_file(path: Path) -> ModuleType:
    """Like running a script: modules beside the file can be imported by it."""
    if not path.is_file():
        raise TaskUnusable(f"no file {path} (looked in {Path.cwd()})")
    name, folder = f"lethe_task_{path.stem}", path.resolve().parent
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskUnusable(f"{path} is not a Python file")
    if (own := OwnModules.of(folder)) is not None:
        own.adopt(spec)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _look_in(folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TaskUnusable(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _import_module(name: str) -> ModuleType:
    """An installed module, or one in the working directory."""
    _look_in(Path.cwd())
    folder = _folder_of(name.partition(".")[0])
    own = OwnModules.of(folder) if folder is not None else None
    try:
        return importlib.import_module(own.name_of(name) if own is not None else name)
    except Exception as error:
        raise TaskUnusable(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _folder_of(module: str) -> Path | None:
    """Where the data holder's top-level module lies. One that is called like ours is looked for in all places but
    ours, the working directory first."""
    if module in OURS:
        places = [Path(place).resolve() for place in ("", *sys.path)]
        return next((place for place in places if module in clashing_names(place)), None)
    spec = PathFinder.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file.parents[1] if spec.submodule_search_locations else file.parent


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
