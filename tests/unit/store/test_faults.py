"""What the database's errors are taken for."""

from __future__ import annotations

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi

from coordinator.store.faults import RolledBack, Unavailable, fault_of


def test_a_connection_that_broke_in_the_middle_of_an_operation_is_the_databases_fault() -> None:
    said = asyncpg.exceptions.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
    assert type(fault_of(said)) is Unavailable
    wrapped = AsyncAdapt_asyncpg_dbapi.InternalClientError(str(said), said)  # type: ignore[no-untyped-call]
    assert type(fault_of(wrapped)) is Unavailable


def test_a_deadlock_is_told_from_a_database_that_is_away() -> None:
    assert type(fault_of(asyncpg.exceptions.DeadlockDetectedError("deadlock detected"))) is RolledBack
    assert fault_of(KeyError("a fault of ours")) is None
