"""The table of who may move a request from one status to another is what the code does."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from coordinator.engine import erasure
from coordinator.engine.entities import SETTLED
from coordinator.engine.erasure.status import MOVES
from services.wire.v1.erasure import ErasureStatus

ENGINE = Path(erasure.__file__).parent.parent
WITH_ITS_ORIGINAL = ("completion.settle", "status")
"""A request ends here in the status that the caller names, and its duplicates with it."""


def moves_in(path: Path) -> set[tuple[str, str]]:
    """(function, status) of each call that moves a request."""
    found: set[tuple[str, str]] = set()
    for function in ast.parse(path.read_text()).body:
        for call in ast.walk(function):
            if isinstance(function, ast.FunctionDef) and isinstance(call, ast.Call):
                name, place = ast.unparse(call.func), f"{path.stem}.{function.name}"
                if name.endswith("ErasureMoved"):
                    found.add((place, ast.unparse(call.args[1]).strip("'")))
                elif name == "settle":
                    found.add((place, ast.unparse(call.args[2]).strip("'")))
    return found


def test_every_call_that_moves_a_request_is_in_the_table_and_nothing_else() -> None:
    found = set().union(*(moves_in(path) for path in sorted(ENGINE.rglob("*.py"))))
    assert found == {(move.by, move.to) for move in MOVES if None not in move.sources} | {WITH_ITS_ORIGINAL}


def test_every_status_is_reached_and_only_open_ones_are_left() -> None:
    statuses = set(get_args(ErasureStatus))
    assert {move.to for move in MOVES} == statuses
    assert {source for move in MOVES for source in move.sources} == {None, *(statuses - SETTLED)}
