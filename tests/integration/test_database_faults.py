"""Which faults of a real database are worth another attempt, and what its errors repeat."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from coordinator.store import schema
from coordinator.store import tables as t
from coordinator.store.database import Database, TimedOut, Unavailable
from coordinator.store.faults import is_transient
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.anyio
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECRET = "a-token-that-no-log-may-show"


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if is_postgres else f"sqlite:///{tmp_path / 'lethe.db'}"
    database = Database(url)
    await schema.upgrade(database)
    yield database
    await database.close()


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(postgres_url)
    await schema.upgrade(database)
    yield database
    await database.close()


async def add_federation(database: Database, number: int = 1) -> None:
    async with database.write() as connection:
        row = {"id": UUID(int=number), "name": f"{SECRET}-{number}", "created_at": NOW}
        await connection.execute(t.federations.insert(), row)


def test_sqlstates_are_transient_by_their_class() -> None:
    transient = ("08006", "25006", "25P03", "40001", "40P01", "53100", "53300", "55P03", "57P01", "57P03", "58030")
    assert all(map(is_transient, transient))
    assert not any(map(is_transient, ("22003", "22P02", "23505", "25001", "25P02", "28P01", "42P01", "XX000")))


async def test_a_failover_to_read_only_and_back_leaves_no_connection_stuck(
    postgres: Database, postgres_server: PostgresServer
) -> None:
    name = postgres.url.database
    async with postgres.read(), postgres.read(), postgres.read():
        pass  # three pooled connections
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    _disconnect(postgres_server, name)
    with pytest.raises(Unavailable):
        await add_federation(postgres)
    async with postgres.read(), postgres.read(), postgres.read():
        pass  # three that stay read-only as long as they live
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    with pytest.raises(Unavailable):
        await add_federation(postgres)
    await add_federation(postgres)  # the first refusal was enough to drop all of them


async def test_a_statement_that_takes_too_long_is_not_tried_for_ever(postgres: Database) -> None:
    with pytest.raises(TimedOut):
        async with postgres.write() as connection:
            await connection.execute(sa.text("SET LOCAL statement_timeout TO 10"))
            await connection.execute(sa.text("SELECT pg_sleep(60)"))


async def test_a_database_that_takes_no_connections_is_away(
    postgres: Database, postgres_server: PostgresServer
) -> None:
    name = postgres.url.database
    postgres_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    _disconnect(postgres_server, name)
    with pytest.raises(Unavailable):
        async with postgres.read() as connection:
            await connection.execute(sa.select(1))
    postgres_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    await add_federation(postgres)


@pytest.mark.parametrize("sql", ["SELECT 1 / 0", "SELECT * FROM nowhere", "SELECT 'x'::uuid", "SELEC"])
async def test_a_statement_that_is_wrong_fails_alone(postgres: Database, sql: str) -> None:
    with pytest.raises(DBAPIError):
        async with postgres.read() as connection:
            await connection.execute(sa.text(sql))


async def test_a_value_that_no_column_takes_is_not_taken_for_a_lost_connection(postgres: Database) -> None:
    with pytest.raises(DBAPIError) as raised:
        async with postgres.write() as connection:
            await connection.execute(
                sa.select(sa.cast(sa.bindparam("number", type_=sa.Integer), sa.Integer)), {"number": 2**70}
            )
    assert str(2**70) not in _text(raised.value)


@pytest.mark.parametrize("pragma", ["query_only=ON", "max_page_count=1"])
async def test_sqlite_that_is_read_only_or_full_is_tried_again(tmp_path: Path, pragma: str) -> None:
    database = Database(f"sqlite:///{tmp_path / 'lethe.db'}")
    await schema.upgrade(database)
    async with database.write() as connection:
        await connection.execute(sa.text(f"PRAGMA {pragma}"))
    with pytest.raises(Unavailable):
        for number in range(1000):  # until its pages are used up
            await add_federation(database, number)
    await add_federation(database, 5000)  # through a new connection
    await database.close()


async def test_a_wrong_statement_to_sqlite_fails_alone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'lethe.db'}")
    with pytest.raises(DBAPIError):
        async with database.read() as connection:
            await connection.execute(sa.text("SELECT * FROM nowhere"))
    await database.close()


async def test_an_error_of_the_blob_disk_inside_a_transaction_is_not_the_databases(database: Database) -> None:
    with pytest.raises(PermissionError):
        async with database.write():
            raise PermissionError(13, "a file that cannot be deleted")


async def test_errors_repeat_no_values_of_the_statement(database: Database) -> None:
    await add_federation(database)
    for row in ({"id": UUID(int=1), "created_at": NOW}, {"id": UUID(int=2), "created_at": None}):
        with pytest.raises(IntegrityError) as raised:
            async with database.write() as connection:
                await connection.execute(t.federations.insert().values(name=f"{SECRET}-1", **row))
        assert SECRET not in _text(raised.value)


def _text(error: BaseException) -> str:
    """All that a log would hold of it, its causes included."""
    return "".join(traceback.format_exception(error))


def _disconnect(server: PostgresServer, name: str | None) -> None:
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
