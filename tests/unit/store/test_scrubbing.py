"""What a purge takes out of rows: every column that can hold words is known to it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from coordinator.store import tables as t
from coordinator.store.scrubbing import SCRUBS
from coordinator.store.unscrubbed import STAYS


def test_every_column_that_can_hold_words_is_scrubbed_or_said_to_stay() -> None:
    def holds_words(column: sa.Column[Any]) -> bool:
        return isinstance(column.type, sa.JSON | sa.String)

    columns = {column for table in t.metadata.tables.values() for column in table.columns if holds_words(column)}
    scrubbed = {one.column for one in SCRUBS if holds_words(one.column)}
    assert {str(c) for c in columns} == {str(c) for c in scrubbed | set(STAYS)}, (
        "a new column that can hold words or figures belongs in SCRUBS or, with its reason, in STAYS"
    )
    assert not scrubbed & set(STAYS)


def test_what_is_scrubbed_is_of_a_kind_that_the_table_of_artefacts_takes() -> None:
    assert {one.kind for one in SCRUBS} - {None} == set(t.SCRUBBED_KINDS)
