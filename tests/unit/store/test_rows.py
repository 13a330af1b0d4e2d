"""Records are their tables' columns, and JSON comes back as it was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from coordinator.engine.entities import Cohort
from coordinator.store.documents import from_text, to_text
from coordinator.store.rows import FIELDS, TABLES
from coordinator.store.tables import Json


@pytest.mark.parametrize("kind", TABLES)
def test_a_tables_columns_are_its_records_fields_in_their_order(kind: Any) -> None:
    names = tuple(column.name for column in TABLES[kind].columns)
    of_the_store = ("stamp", "members_stamp") if kind is Cohort else ()
    assert names == FIELDS[kind.table] + of_the_store


@pytest.mark.parametrize("value", [{}, [1, 2.5, "ü"], {"a": None}, {"1": [True]}, {1: 2}, 2**70])
def test_json_is_written_so_that_any_reader_reads_it(value: Any) -> None:
    table = sa.Table("a", sa.MetaData(), sa.Column("value", Json))
    engine = sa.create_engine("sqlite://", json_serializer=to_text, json_deserializer=from_text)
    with engine.connect() as connection:
        table.create(connection)
        connection.execute(table.insert().values(value=[value]))
        expected = json.loads(json.dumps([value]))
        text = connection.execute(sa.text("SELECT value FROM a")).scalar_one()
        assert json.loads(text) == expected
        assert connection.execute(sa.select(table.c.value)).scalar_one() == expected
