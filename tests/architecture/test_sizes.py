"""What fits on a page can be read: sizes of modules and functions, and how many parameters a function takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("coordinator/store", "coordinator/runtime", "coordinator/api")
MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_PARAMETERS = 450, 60, 7
LONG_MODULES = {"coordinator/store/tables.py"}  # the whole schema is looked up in one place
LONG_FUNCTIONS: set[str] = set()
MANY_PARAMETERS = {
    "coordinator/runtime/erasure.py:__init__",  # what an erasure reaches outside the database
    "coordinator/runtime/pump.py:__init__",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def functions() -> Iterator[tuple[str, Function]]:
    for name, text in modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                yield f"{name}:{node.name}", node


def num_lines(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def num_parameters(function: Function) -> int:
    """Without `self`."""
    taken = function.args
    names = [one.arg for one in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_modules_are_short() -> None:
    assert {name for name, text in modules() if len(text.splitlines()) > MOST_LINES} == LONG_MODULES


def test_functions_are_short() -> None:
    assert {name for name, one in functions() if num_lines(one) > MOST_LINES_OF_A_FUNCTION} == LONG_FUNCTIONS


def test_functions_take_few_parameters() -> None:
    assert {name for name, one in functions() if num_parameters(one) > MOST_PARAMETERS} == MANY_PARAMETERS
