"""What the clock looks for every second must not cost more in a federation that has trained for years."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.store import due
from coordinator.store import tables as t

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "leases that ran out": (due._LAPSED, {"now": NOW, "most": 10}),
    "deadlines that passed": (due._PASSED, {"now": NOW, "most": 10}),
    "leases from ahead": (due._LEASED_BEYOND, {"end": NOW}),
    "tasks to claim": (due._CLAIMABLE, {"client_ids": [UUID(int=1)], "now": NOW, "ahead": NOW}),
    "runs to claim from": (due._TO_CLAIM_FROM, {"client": UUID(int=1)}),
}


@pytest.fixture(scope="module")
def engine() -> sa.Engine:
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    t.metadata.create_all(engine)
    return engine


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_reads_no_table_of_past_work_from_end_to_end(engine: sa.Engine, look: str) -> None:
    statement, values = LOOKS[look]
    compiled = statement.params(values).compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}")]
    scanned = [step for step in plan if step.startswith(("SCAN tasks", "SCAN rounds", "SCAN updates"))]
    assert scanned == [], plan
