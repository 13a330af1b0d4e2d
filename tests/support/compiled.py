"""Statements are compiled once in a test process, not once for each database of each test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_NUM_STATEMENTS: Final = 5000


@contextlib.contextmanager
def once() -> Iterator[None]:
    """Engines share what they compiled, where the class of the dialect and how it writes JSON are the same: everything
    else of a dialect that a statement's text depends on is the server's version, and a test process has one server."""
    shared: LRUCache[Any, Any] = LRUCache(_NUM_STATEMENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_compiled_cache", property(lambda _: shared, lambda *_: None), raising=False)
        patch.setattr(DefaultDialect, "__eq__", _is_same)
        patch.setattr(DefaultDialect, "__hash__", lambda one: hash(_looks(one)))
        yield


def _is_same(one: Any, other: object) -> bool:
    return isinstance(other, DefaultDialect) and _looks(one) == _looks(other)


def _looks(dialect: Any) -> tuple[Any, ...]:
    return type(dialect), dialect.paramstyle, getattr(dialect, "_json_serializer", None)
