"""The kinds of columns, constraints and partial indices that the tables are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    ColumnElement,
    DateTime,
    MetaData,
    String,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import Concatenable, TypeDecorator

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime on every back end (SQLite has no time zones of its own)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        instant: datetime = value
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


class Word(String):
    """One of a few words, like a status. Those that it is compared with stand in the statement itself: with a parameter
    a database does not use a partial index, and SQLite compiles the statement anew each time to see whether it can."""

    class comparator_factory(Concatenable.Comparator[str]):
        def operate(self, op: OperatorType, *other: Any, **settings: Any) -> ColumnElement[Any]:
            return super().operate(op, *map(_spelt_out, other), **settings)


def _spelt_out(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_spelt_out(one) for one in value]
    if isinstance(value, str) and value.isascii() and value.replace("-", "_").isidentifier():
        return literal_column(f"'{value}'", String)
    return value


Json = JSON().with_variant(JSONB(), "postgresql")


def one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(v) for v in values)})", name=f"known_{column}")


def where(condition: str) -> dict[str, Any]:
    """A partial index on both back ends."""
    return {"postgresql_where": text(condition), "sqlite_where": text(condition)}
