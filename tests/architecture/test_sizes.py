"""Nothing grows beyond what can be read in one sitting. What is larger today is named with its size, which may only
fall: write the smaller number down when it has shrunk, and strike it out when it is no exception any more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("coordinator", "services", "worker", "lethe")

MOST_LINES_OF_A_MODULE: Final = 450
LARGER_MODULES: Final[dict[str, int]] = {}

MOST_LINES_OF_A_FUNCTION: Final = 60
LONGER_FUNCTIONS: Final[dict[str, int]] = {}

MOST_PARAMETERS: Final = 7
MORE_PARAMETERS: Final = {
    # what forgets outside the database works on every part of the coordinator
    "coordinator/runtime/erasure_steps.ErasureSteps.__init__": 8,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, str]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}


def functions(node: ast.AST, name: str) -> Iterator[tuple[str, Function, bool]]:
    """Every function under the node with its full name, and whether it is a method."""
    for child in ast.iter_child_nodes(node):
        inner = f"{name}.{child.name}" if isinstance(child, Function | ast.ClassDef) else name
        if isinstance(child, Function):
            yield inner, child, isinstance(node, ast.ClassDef)
        yield from functions(child, inner)


def num_lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def num_parameters(function: Function, is_method: bool) -> int:
    """Those that a caller gives: neither `self` nor `cls`."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (is_method and names[:1] in (["self"], ["cls"]))


@pytest.fixture(scope="module")
def sizes() -> list[tuple[str, str, int]]:
    """(what is measured, where, how large)."""
    return list(measured())


def measured() -> Iterator[tuple[str, str, int]]:
    for path, text in modules().items():
        yield "lines of a module", path, len(text.splitlines())
        for name, function, is_method in functions(ast.parse(text), path.removesuffix(".py")):
            yield "lines of a function", name, num_lines(function)
            yield "parameters", name, num_parameters(function, is_method)


@pytest.mark.parametrize(
    ("measure", "most", "larger"),
    [
        ("lines of a module", MOST_LINES_OF_A_MODULE, LARGER_MODULES),
        ("lines of a function", MOST_LINES_OF_A_FUNCTION, LONGER_FUNCTIONS),
        ("parameters", MOST_PARAMETERS, MORE_PARAMETERS),
    ],
)
def test_nothing_is_too_large_and_what_is_does_not_grow(
    sizes: list[tuple[str, str, int]], measure: str, most: int, larger: dict[str, int]
) -> None:
    found: dict[str, int] = {}
    for what, where, size in sizes:
        if what == measure and size > most:
            found[where] = max(size, found.get(where, 0))
    grown = {where: size for where, size in found.items() if size > larger.get(where, most)}
    assert not grown, f"{measure}, of which there may be {most}: divide what has grown"
    done = larger.keys() - found.keys()
    assert not done, f"{measure}: these are small enough now, or gone; strike them out"
