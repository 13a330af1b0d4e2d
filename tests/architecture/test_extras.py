"""What a role imports is what its extra installs; tests/e2e/test_extras.py installs them for real."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from services.methods.catalogue import BUILT_IN, CLIENT_WORK, KERNELS, PROGRAMS

ROOT = Path(__file__).parents[2]
OURS = ("services", "coordinator", "worker", "lethe", "migrations")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OVER_HTTP = ("federations", "clients", "credentials", "runs", "checkpoints", "blobs", "erase", "certificates", "data")


def modules(references: Iterable[str]) -> list[str]:
    return [reference.partition(":")[0] for reference in references]


ROLES = {
    "": [*(f"lethe.commands.{name}" for name in OVER_HTTP), "lethe.commands.methods", *modules(BUILT_IN)],
    "verify": ["lethe.commands.verify"],
    "coordinator": [
        *("lethe.commands.serve", "lethe.commands.database", "lethe.commands.openapi"),
        *modules(PROGRAMS.values()),
    ],
    "compute": [
        *("lethe.commands.compute", "lethe.commands.simulate", "lethe.commands.demo", "migrations.env"),
        *modules(KERNELS.values()),
    ],
    "worker": ["lethe.commands.worker", *modules(work.handler for work in CLIENT_WORK.values())],
    "language": ["lethe.commands.models"],
}
"""Where each role begins; methods and migrations are imported by name."""
OF_KERNELS = {"torch", "ortools"}
"""A coordinator without them leaves kernels to others, or refuses to start."""


@cache
def installed_by(extra: str) -> frozenset[str]:
    """Names that can be imported where `lethe[extra]` alone is installed."""
    names_of: dict[str, set[str]] = {}
    for name, distributions in metadata.packages_distributions().items():
        for distribution in distributions:
            names_of.setdefault(_canonical(distribution), set()).add(name)
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in (*PROJECT["dependencies"], *EXTRAS.get(extra, ()))]
    while waiting:
        requirement, _ = waiting.pop()
        name = _canonical(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            texts = EXTRAS[wanted] if name == "lethe" and wanted else _requirements_of(name)
            for text in texts:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": wanted}):
                    waiting.append((needed, wanted))
    return frozenset(name for distribution, _ in seen for name in names_of.get(distribution, ()))


def _requirements_of(distribution: str) -> list[str]:
    try:
        return metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:  # of another platform
        return []


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


@cache
def imports_of(module: str) -> frozenset[str]:
    """Everything that the module's code imports, late imports too, except for type checkers."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return frozenset(_imports(ast.parse(file.read_text("utf-8")))) if file.is_file() else frozenset()


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _imports(child)


def reached_from(roots: list[str]) -> dict[str, str]:
    """Names of others' packages that the roots lead to, each with a module of ours that imports it."""
    found: dict[str, str] = {}
    waiting, seen = list(roots), set(roots)
    while waiting:
        module = waiting.pop()
        for name in imports_of(module):
            top = name.partition(".")[0]
            if top not in OURS:
                found.setdefault(top, module)
            elif name not in seen:
                seen.add(name)
                waiting.append(name)
    return {name: module for name, module in found.items() if name not in sys.stdlib_module_names}


@pytest.mark.parametrize("extra", ROLES)
def test_a_role_imports_only_what_its_extra_installs(extra: str) -> None:
    spared = OF_KERNELS if extra == "coordinator" else set()
    reached = reached_from(ROLES[extra])
    assert reached, "the roots exist"
    missing = {name: by for name, by in reached.items() if name not in installed_by(extra) | spared}
    assert not missing


def test_a_command_asks_only_for_packages_of_the_extra_that_it_names() -> None:
    asked = []
    for file in (ROOT / "lethe").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                extras, *packages = [ast.literal_eval(argument) for argument in node.args]
                asked.append(file)
                installed = frozenset().union(*(installed_by(extra) for extra in extras.split(",")))
                assert extras.split(",")[0] in EXTRAS and set(packages) <= installed, (file, extras, packages)
    assert len(asked) >= 8


def test_every_extra_is_a_role_or_known_to_have_none() -> None:
    assert EXTRAS.keys() == ROLES.keys() - {""} | {"data", "report", "dev"}
