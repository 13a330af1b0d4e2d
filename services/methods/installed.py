"""Methods that other packages bring: entry points of the group `lethe.methods`, each of which is a description.

One that cannot be imported, is no description, refers to modules that are not there, or takes a name that is taken is
left out as a whole, with the reason. Nothing is logged here: whoever starts a process says what was left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Final

from services.methods.description import Description

GROUP: Final = "lethe.methods"


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Installed:
    description: Description
    package: Package


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`name` is that of the entry point."""

    name: str
    package: Package
    reason: str


def find_installed(taken: Iterable[str]) -> tuple[list[Installed], list[LeftOut]]:
    """Everything that is installed beside what has the names `taken` (see `names_of`), in the order of packages."""
    known, found, left_out = set(taken), list[Installed](), list[LeftOut]()
    points = [(_package_of(point), point) for point in entry_points(group=GROUP)]
    for package, point in sorted(points, key=lambda one: (one[0].name, one[1].name)):
        try:
            description = _load(point, known)
        except (Exception, SystemExit) as error:  # importing somebody else's code may raise anything
            left_out.append(LeftOut(point.name, package, " ".join(str(error).split())[:500] or type(error).__name__))
            continue
        known |= names_of(description)
        found.append(Installed(description, package))
    return found, left_out


def names_of(description: Description) -> set[str]:
    """The names that nobody else may have, each with what it is the name of."""
    kernels = {f"kernel {name}" for name in description.kernels}
    return {f"method {description.name}"} | kernels | {f"kind of task {kind}" for kind in description.client_work}


def _load(point: EntryPoint, known: set[str]) -> Description:
    description = point.load()
    if not isinstance(description, Description):
        raise TypeError(f"{point.value} is a {type(description).__name__}, not the description of a method")
    if clashes := sorted(names_of(description) & known):
        raise ValueError(f"there is another {clashes[0]}")
    for module in sorted({reference.partition(":")[0] for reference in description.references}):
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}, which the description refers to")
    return description


def _package_of(point: EntryPoint) -> Package:
    return Package(point.dist.name, point.dist.version) if point.dist is not None else Package("unknown", "unknown")
