"""Prepared statements find and change on SQLite what SQLAlchemy's own way does."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from coordinator.store.prepared import Plans, driver, prepared
from coordinator.store.rows import FIELDS, TABLES

NOW = datetime(2030, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
FEDERATION = UUID(int=7)
_own = t.clients.c.federation_id == sa.bindparam("federation")
_among = t.clients.c.name.in_(sa.bindparam("names", expanding=True))
_active = t.clients.c.status.in_(("active", "unheard-of"))
STATEMENTS: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "rows of every type": (sa.select(t.clients).where(_own).order_by(t.clients.c.name), {"federation": FEDERATION}),
    "a list": (sa.select(t.clients.c.name).where(_among).order_by(t.clients.c.name), {"names": ["a", "c", "x"]}),
    "an empty list": (sa.select(t.clients.c.name).where(_among), {"names": []}),
    "a list of its own": (sa.select(t.clients.c.name).where(_active, _among), {"names": ["b"]}),
    "a union": (
        sa.union(sa.select(t.clients.c.id).where(_among), sa.select(t.clients.c.id).where(_active)),
        {"names": ["a", "b"]},
    ),
    "an instant": (sa.select(t.clients.c.name).where(t.clients.c.created_at <= sa.bindparam("now")), {"now": NOW}),
    "constants": (
        sa.select(t.clients.c.name, sa.literal("it's :names").label("said"))
        .where(t.clients.c.status == "active", t.clients.c.exclusions.is_(None), sa.literal(True), _among)
        .limit(2),
        {"names": ["a", "b", "c"]},
    ),
    "a parameter twice": (
        sa.select(t.clients.c.name).where((_own & (t.clients.c.name == "a")) | _own).order_by(t.clients.c.name),
        {"federation": FEDERATION},
    ),
    "no parameters": (sa.select(sa.func.count().label("num")).select_from(t.clients), None),
}


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://")
    t.metadata.create_all(engine)
    with engine.connect() as connection:
        connection.execute(t.federations.insert().values(id=FEDERATION, name="f", created_at=NOW))
        rows = [client(number, name) for number, name in enumerate("abc", 1)]
        plan = Plans().find(statement := prepared(t.clients.insert()), rows)
        assert plan is not None, statement
        assert plan.run(driver(connection), rows).rowcount == 3
        yield connection


def client(number: int, name: str) -> dict[str, Any]:
    nothing = dict.fromkeys(FIELDS["clients"])
    own = {"id": UUID(int=number), "federation_id": FEDERATION, "name": name, "status": "active", "created_at": NOW}
    return {**nothing, **own, "devices": [{"kind": "cpu", "number": number}]}


@pytest.mark.parametrize("name", STATEMENTS)
def test_both_ways_find_the_same(connection: sa.Connection, name: str) -> None:
    statement, parameters = STATEMENTS[name]
    marked = prepared(statement)
    plan = Plans().find(marked, parameters)
    assert plan is not None
    found = plan.run(driver(connection), parameters)
    expected = connection.execute(statement, parameters)
    keys = list(expected.keys())
    assert [row._asdict() for row in found] == [dict(zip(keys, row, strict=True)) for row in expected]


def test_a_change_says_how_many_rows_it_changed(connection: sa.Connection) -> None:
    statement = prepared(t.clients.update().where(_among).values(status="removed"))
    plan = Plans().find(statement, {"names": ["a"]})
    assert plan is not None
    assert plan.run(driver(connection), {"names": ["a", "b", "x"]}).rowcount == 2
    assert set(connection.execute(sa.select(t.clients.c.name).where(_active))) == {("c",)}


def test_a_statement_that_is_not_marked_takes_the_general_way() -> None:
    assert Plans().find(sa.select(t.clients), None) is None


def test_a_broken_rule_is_the_error_that_sqlalchemy_gives(connection: sa.Connection) -> None:
    rows = [client(1, "again")]
    plan = Plans().find(prepared(t.clients.insert()), rows)
    assert plan is not None
    with pytest.raises(sa.exc.IntegrityError) as caught:
        plan.run(driver(connection), rows)
    assert isinstance(caught.value.orig, sqlite3.IntegrityError)


@pytest.mark.parametrize("kind", TABLES)
def test_a_tables_columns_are_its_records_fields_in_their_order(kind: Any) -> None:
    assert tuple(column.name for column in TABLES[kind].columns) == FIELDS[kind.table]


@pytest.mark.parametrize("value", [{}, [1, 2.5, "ü"], {"a": None}, {"1": [True]}, {1: 2}, 2**70])
def test_json_is_written_so_that_sqlalchemys_own_way_reads_it(connection: sa.Connection, value: Any) -> None:
    rows = [{**client(9, "z"), "devices": value}]
    plan = Plans().find(prepared(t.clients.insert()), rows)
    assert plan is not None
    plan.run(driver(connection), rows)
    read = connection.execute(sa.select(t.clients.c.devices).where(t.clients.c.name == "z")).scalar_one()
    assert read == json.loads(json.dumps(value))
