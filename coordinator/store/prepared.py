"""Statements that are made once and run for ever.

On SQLite they go straight to the driver: SQLAlchemy's general way takes several times as long as SQLite itself. On
Postgres they are statements like any other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData

from services.core.errors import InvariantBroken

S = TypeVar("S", bound=sa.Executable)
Process = Callable[[Any], Any]
_MARK: Final = "lethe_prepared"
_DIALECT: Final = sqlite.dialect(paramstyle="named")


def prepared(statement: S) -> S:
    """Mark a statement that is kept: it is compiled when first used. Lists (`expanding`) may only stand after IN, and
    the columns that it finds have names."""
    return statement.execution_options(**{_MARK: True})


def driver(connection: sa.Connection) -> sqlite3.Connection:
    """The driver's own connection below SQLAlchemy's."""
    own = connection.connection.driver_connection
    assert isinstance(own, sqlite3.Connection)
    return own


def run(connection: sa.Connection, text: str) -> None:
    """One word to the driver, like COMMIT."""
    try:
        driver(connection).execute(text)
    except sqlite3.Error as error:
        raise _translated(error, text) from error


def _translated(error: sqlite3.Error, text: str) -> BaseException:
    return sa.exc.DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True)


class Found(IteratorResult[Any]):
    """What a statement found, like SQLAlchemy's own, and how many rows it changed."""

    def __init__(self, metadata: SimpleResultMetaData, rows: Iterable[Sequence[Any]], rowcount: int) -> None:
        super().__init__(metadata, iter(rows))
        self.rowcount = rowcount


class Plans:
    """The compiled form of prepared statements, for one connection after the other."""

    def __init__(self) -> None:
        self._plans: dict[int, _Plan] = {}

    def find(self, statement: sa.Executable, parameters: Any) -> _Plan | None:
        """None for statements that are not prepared."""
        plan = self._plans.get(id(statement))
        if plan is None and _MARK in statement.get_execution_options():
            first = parameters if isinstance(parameters, Mapping) or not parameters else parameters[0]
            plan = self._plans[id(statement)] = _Plan(statement, list(first or ()))
        return plan


@lru_cache(maxsize=100_000)
def _uuid(text: str | None) -> UUID | None:
    """The same ids are read again and again."""
    return None if text is None else UUID(text)


class _Plan:
    def __init__(self, statement: Any, names: list[str]) -> None:
        """`names` of the parameters that it is first used with, which are the columns of an insert."""
        self._statement = statement  # kept alive: plans are found by its id
        is_insert = isinstance(statement, sa.Insert)
        compiled = statement.compile(dialect=_DIALECT, column_keys=names if is_insert else None)
        if is_insert and compiled.insert_prefetch:
            raise InvariantBroken(f"columns of a prepared insert have defaults: {compiled.insert_prefetch}")
        self._text = str(compiled)
        self._constants: dict[str, Any] = {}
        self._values: list[tuple[str, str, Process | None]] = []
        self._lists: list[tuple[str, str, Process | None]] = []
        for name, bound in compiled.binds.items():
            process = bound.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)
            if bound.expanding and not bound.required:
                self._text = self._expanded(self._text, name, bound.effective_value, process, self._constants)
            elif bound.expanding:
                self._lists.append((name, bound.key, process))
            elif bound.required or is_insert:
                self._values.append((name, bound.key, process))
            else:
                value = bound.effective_value
                self._constants[name] = value if process is None else process(value)
        columns = list(statement.exported_columns) if hasattr(statement, "exported_columns") else []
        self._metadata = SimpleResultMetaData([column.key for column in columns])
        self._results: list[tuple[int, Process]] = []
        for place, column in enumerate(columns):
            is_uuid = isinstance(column.type, sa.Uuid)
            result = _uuid if is_uuid else column.type.dialect_impl(_DIALECT).result_processor(_DIALECT, None)
            if result is not None:
                self._results.append((place, result))

    def run(self, connection: sqlite3.Connection, parameters: Any) -> Found:
        text = self._text
        try:
            if isinstance(parameters, Sequence):
                cursor = connection.executemany(text, [self._bound(one) for one in parameters])
                return Found(self._metadata, (), cursor.rowcount)
            bound = self._bound(parameters or {})
            for name, key, process in self._lists:
                text = self._expanded(text, name, parameters[key], process, bound)
            cursor = connection.execute(text, bound)
            return Found(self._metadata, map(self._row, cursor.fetchall()), cursor.rowcount)
        except sqlite3.Error as error:
            raise _translated(error, text) from error

    def _bound(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        bound = dict(self._constants)
        for name, key, process in self._values:
            value = parameters[key]
            bound[name] = value if process is None else process(value)
        return bound

    def _expanded(
        self, text: str, name: str, values: Sequence[Any], process: Process | None, bound: dict[str, Any]
    ) -> str:
        names = [f"{name}_{number}" for number in range(len(values))]
        bound.update(zip(names, values if process is None else map(process, values), strict=True))
        return text.replace(f"__[POSTCOMPILE_{name}]", ", ".join(f":{one}" for one in names) or "NULL")

    def _row(self, row: tuple[Any, ...]) -> Sequence[Any]:
        if not self._results:
            return row
        values = list(row)
        for place, process in self._results:
            values[place] = process(values[place])
        return tuple(values)
