"""Connections are asked how far their database has come; one that is behind is not used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.store import evidence, gate, schema
from coordinator.store.database import Database, NotReady
from coordinator.store.gate import Mark
from services.core import digests

pytestmark = pytest.mark.anyio
MARKS = [Mark(number, digests.of_bytes(bytes([number]))) for number in range(3)]


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'lethe.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = Database(url)
    await schema.upgrade(database)
    await move(database, None, MARKS[0])
    yield database
    await database.close()


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(postgres_url)
    await schema.upgrade(database)
    await move(database, None, MARKS[0])
    yield database
    await database.close()


async def move(database: Database, before: Mark | None, after: Mark) -> None:
    async with database.past_the_gate().write() as connection:
        assert await evidence.move_mark(connection, before, after)


async def process_of(database: Database) -> int:
    async with database.read() as connection:
        return int((await connection.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one())


async def test_who_comes_while_the_gate_is_shut_waits_until_it_opens(database: Database) -> None:
    database.gate.shut()

    async def read() -> Mark | None:
        async with database.read() as connection:
            return await evidence.mark(connection)

    waiting = asyncio.create_task(read())
    await asyncio.sleep(0)
    assert not waiting.done()
    database.gate.open()
    assert await waiting == MARKS[0]


async def test_a_fault_is_told_at_once_and_does_not_hinder_whoever_compares(database: Database) -> None:
    database.gate.shut("the evidence is away")
    with pytest.raises(NotReady, match="the evidence is away"):
        async with database.read():
            pass
    with pytest.raises(NotReady, match="the evidence is away"):
        async with database.write():
            pass
    async with database.past_the_gate().read() as connection:
        assert await evidence.mark(connection) == MARKS[0]


async def test_who_waits_in_vain_is_told_to_try_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "LONGEST_WAIT_S", 0.0)
    database.gate.shut()
    with pytest.raises(NotReady, match="try again"):
        async with database.read():
            pass


async def test_a_new_connection_to_a_database_that_is_behind_shuts_the_gate_before_it_is_used(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LONGEST_WAIT_S", 0.0)
    rung: list[bool] = []
    database.gate.watch(lambda mark: mark == MARKS[1], lambda: rung.append(True))
    await database.close()  # what was open: the next one connects anew
    with pytest.raises(NotReady):
        async with database.read():
            pass
    assert rung == [True]
    await move(database, MARKS[0], MARKS[1])
    database.gate.open()
    async with database.read() as connection:
        assert await evidence.mark(connection) == MARKS[1]
    assert rung == [True]


async def test_a_pooled_connection_is_asked_again_when_more_is_known(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LONGEST_WAIT_S", 0.0)
    known = [MARKS[0]]
    postgres.gate.watch(lambda mark: mark == known[0], lambda: None)
    process = await process_of(postgres)
    await move(postgres, MARKS[0], MARKS[1])
    known[0] = MARKS[1]
    postgres.gate.renew()
    assert await process_of(postgres) == process  # it has come as far: nothing is opened anew
    known[0] = MARKS[2]
    postgres.gate.renew()
    with pytest.raises(NotReady):
        await process_of(postgres)
    assert not postgres.gate.is_open


async def test_a_mark_moves_only_from_where_it_stands(database: Database) -> None:
    async with database.write() as connection:
        assert not await evidence.move_mark(connection, None, MARKS[1])
        assert not await evidence.move_mark(connection, MARKS[1], MARKS[2])
        assert not await evidence.move_mark(connection, MARKS[0]._replace(digest=MARKS[1].digest), MARKS[2])
        assert await evidence.mark(connection) == MARKS[0]
        assert await evidence.move_mark(connection, MARKS[0], MARKS[1])
        assert await evidence.mark(connection) == MARKS[1]
