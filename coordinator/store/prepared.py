"""Statements that are made once and run for ever.

On SQLite they go straight to the driver: SQLAlchemy's general way takes several times as long as SQLite itself. On
Postgres they are statements like any other.
"""

from __future__ import annotations

import re
import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from coordinator.store.documents import from_text, to_text
from coordinator.store.tables import Instant
from services.core.errors import InvariantBroken

S = TypeVar("S", bound=sa.Executable)
Process = Callable[[Any], Any]


_MARK: Final = "lethe_prepared"
_DIALECT: Final = sqlite.dialect(paramstyle="named", json_serializer=to_text, json_deserializer=from_text)


def prepared(statement: S) -> S:
    """Mark a statement that is kept: it is compiled when first used. Lists (`expanding`) may only stand after IN, and
    the columns that it finds have names."""
    return statement.execution_options(**{_MARK: True})


def driver(connection: sa.Connection) -> sqlite3.Connection:
    """The driver's own connection below SQLAlchemy's."""
    own = connection.connection.driver_connection
    assert isinstance(own, sqlite3.Connection)
    return own


def run(connection: sqlite3.Connection, text: str) -> None:
    """One word to the driver, like COMMIT."""
    try:
        connection.execute(text)
    except sqlite3.Error as error:
        raise _translated(error, text) from error


def _translated(error: sqlite3.Error, text: str) -> BaseException:
    return sa.exc.DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True)


class Found:
    """What a statement found, and how many rows it changed: the part of SQLAlchemy's result that the store uses."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def first(self) -> Any | None:
        return self._rows[0] if self._rows else None

    def scalar(self) -> Any | None:
        return self._rows[0][0] if self._rows else None

    def scalar_one_or_none(self) -> Any | None:
        if len(self._rows) > 1:
            raise sa.exc.MultipleResultsFound(f"{len(self._rows)} rows where one was expected")
        return self.scalar()

    def scalars(self) -> Iterator[Any]:
        return (row[0] for row in self._rows)


class Plans:
    """The compiled form of prepared statements, for one connection after the other."""

    def __init__(self) -> None:
        self._plans: dict[int, _Plan] = {}

    def find(self, statement: sa.Executable, parameters: Any) -> _Plan | None:
        """None for statements that are not prepared."""
        plan = self._plans.get(id(statement))
        if plan is None and _MARK in statement.get_execution_options():
            first = parameters[0] if isinstance(parameters, list) else parameters
            plan = self._plans[id(statement)] = _Plan(statement, list(first or ()))
        return plan


# Values on their way to SQLite and back, as SQLAlchemy writes them, but quicker.


def _writer(kind: sa.types.TypeEngine[Any]) -> Process | None:
    return _instant_text if isinstance(kind, Instant) else kind.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def _reader(kind: sa.types.TypeEngine[Any]) -> Process | None:
    if isinstance(kind, sa.Uuid):
        return _uuid
    if isinstance(kind, Instant):
        return _instant
    return kind.dialect_impl(_DIALECT).result_processor(_DIALECT, None)


@lru_cache(maxsize=100_000)
def _uuid(text: str | None) -> UUID | None:
    """The same ids are read again and again."""
    return None if text is None else UUID(text)


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def _instant_text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


class _Parameter(NamedTuple):
    name: str
    key: str
    """Its name where the statement is used."""
    process: Process | None
    is_list: bool


def _filled(text: str, constants: Mapping[str, str], named: Mapping[str, _Parameter]) -> tuple[str, list[_Parameter]]:
    """A statement with its constants in so many words, and with question marks for its parameters, in their order.

    SQLite looks at the value of a parameter that it compares with the condition of a partial index, and so compiles
    such a statement anew each time. And its driver fills question marks faster than names."""
    order: list[_Parameter] = []

    def fill(match: re.Match[str]) -> str:
        name = match["list"] or match["name"]
        if name not in named:
            return constants.get(name, match[0])
        order.append(named[name])
        return match[0] if named[name].is_list else "?"

    return re.sub(r"__\[POSTCOMPILE_(?P<list>\w+)\]|:(?P<name>\w+)", fill, text), order


def _literal(bound: sa.BindParameter[Any]) -> str:
    if bound.value is None:
        return "NULL"
    literal = bound.type.dialect_impl(_DIALECT).literal_processor(_DIALECT)
    if literal is None:
        raise InvariantBroken(f"a constant of a prepared statement cannot be written down: {bound}")
    value: Any = bound.effective_value
    return (", ".join(map(literal, value)) or "NULL") if bound.expanding else literal(value)


def _row_type(names: tuple[str, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Makes rows whose values also have names."""
    make: Any = namedtuple("Row", names)  # type: ignore[misc]  # names that are only known now
    return make._make


class _Plan:
    def __init__(self, statement: Any, names: list[str]) -> None:
        """`names` of the parameters that it is first used with, which are the columns of an insert."""
        self._statement = statement  # kept alive: plans are found by its id
        is_insert = isinstance(statement, sa.Insert)
        compiled = statement.compile(dialect=_DIALECT, column_keys=names if is_insert else None)
        if is_insert and compiled.insert_prefetch:
            raise InvariantBroken(f"columns of a prepared insert have defaults: {compiled.insert_prefetch}")
        constants: dict[str, str] = {}
        named: dict[str, _Parameter] = {}
        for name, bound in compiled.binds.items():
            if not bound.required and not is_insert:
                constants[name] = _literal(bound)
            else:
                named[name] = _Parameter(name, bound.key, _writer(bound.type), bound.expanding)
        self._text, self._parameters = _filled(str(compiled), constants, named)
        columns = list(statement.exported_columns) if hasattr(statement, "exported_columns") else []
        self._make = _row_type(tuple(column.key for column in columns))
        self._results: list[tuple[int, Process]] = []
        for place, column in enumerate(columns):
            if (process := _reader(column.type)) is not None:
                self._results.append((place, process))

    def run(self, connection: sqlite3.Connection, parameters: Any) -> Found:
        text = self._text
        try:
            if isinstance(parameters, list):
                cursor = connection.executemany(text, [self._bound(one) for one in parameters])
                return Found([], cursor.rowcount)
            for name, key, _, is_list in self._parameters:
                if is_list:
                    marks = ", ".join("?" * len(parameters[key])) or "NULL"
                    text = text.replace(f"__[POSTCOMPILE_{name}]", marks)
            cursor = connection.execute(text, self._bound(parameters))
            return Found([self._row(row) for row in cursor.fetchall()], cursor.rowcount)
        except sqlite3.Error as error:
            raise _translated(error, text) from error

    def _bound(self, parameters: Mapping[str, Any]) -> list[Any]:
        bound: list[Any] = []
        for _, key, process, is_list in self._parameters:
            value = parameters[key]
            if is_list:
                bound.extend(value if process is None else map(process, value))
            else:
                bound.append(value if process is None else process(value))
        return bound

    def _row(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for place, process in self._results:
            values[place] = process(values[place])
        return self._make(values)
