"""What clients last reported weighs their cohorts in a merge: the newest counts, and each update is looked at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from coordinator.store import tables as t
from coordinator.store.loading_erasures import last_reported

RUN, COHORT, OTHER_COHORT = UUID(int=1), UUID(int=2), UUID(int=3)
BEGAN_AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        t.updates.create(connection)
        yield connection
    engine.dispose()


def update(number: int, client: int, num_samples: int, *, cohort: UUID = COHORT, kind: str = "train") -> dict[str, Any]:
    return {
        "id": UUID(int=number),
        "run_id": RUN,
        "cohort_id": cohort,
        "round_id": UUID(int=number),
        "task_id": UUID(int=number),
        "client_id": UUID(int=client),
        "client_name": f"client-{client}",
        "kind": kind,
        "status": "discarded",
        "epoch": 0,
        "base_round": 0,
        "base_digest": "",
        "num_samples": num_samples,
        "metrics": {},
        "received_at": BEGAN_AT + timedelta(seconds=number),
        "seconds": 1.0,
        "stored": False,
    }


def test_the_newest_report_of_each_client_in_each_cohort_counts(connection: sa.Connection) -> None:
    rows = [update(10, 1, 100), update(11, 1, 80), update(12, 2, 50), update(13, 1, 7, cohort=OTHER_COHORT)]
    connection.execute(sa.insert(t.updates), [*rows, update(14, 2, 999, kind="evaluate")])
    found = {(row.cohort_id, row.client_id.int): row.num_samples for row in connection.execute(last_reported({RUN}))}
    assert found == {(COHORT, 1): 80, (COHORT, 2): 50, (OTHER_COHORT, 1): 7}


def test_twice_as_many_rounds_cost_about_twice_as_much(connection: sa.Connection) -> None:
    def instructions(num_updates: int) -> int:
        connection.execute(sa.delete(t.updates))
        connection.execute(sa.insert(t.updates), [update(n, n % 10, 5) for n in range(1, num_updates + 1)])
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(count, 100)
        connection.execute(last_reported({RUN})).all()
        driver.set_progress_handler(None, 0)
        return counted

    assert instructions(2000) < 3 * instructions(1000)
