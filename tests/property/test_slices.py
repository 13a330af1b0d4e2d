"""The slice of rows that the store loads for a message leads to the same decisions as the whole world would."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine import messages as m
from coordinator.engine.decide import decide
from coordinator.engine.entities import NOTHING_LOADED, Erasure, Member, State
from coordinator.engine.react import FollowUp, react
from coordinator.engine.replies import Refused
from coordinator.store import blobs, loading, tables
from coordinator.store.database import Database
from coordinator.store.inventory import FoundArtefact, blobs_of, erasure_record, inventory, record
from coordinator.store.rows import TABLES, fetch, fetch_by, write_changes
from coordinator.store.slices import load
from services.core.digests import of_json
from services.core.errors import Rejected
from tests.property.engine_machine import EngineMachine
from tests.property.seeded_walks import walk
from tests.support.world import FEDERATION, START, World

DATA = of_json("validation data")
LEFT = ("upload", "part")


@dataclass
class Store:
    """An SQLite database in memory, driven from code that knows no event loop."""

    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    database: Database = field(default_factory=lambda: Database("sqlite:///:memory:"))
    mirrored: State = field(default_factory=State)

    def open(self) -> None:
        async def create() -> None:
            async with self.database.write() as connection:
                await connection.run_sync(tables.metadata.create_all)
                row = {"id": FEDERATION, "name": "federation", "created_at": START}
                await connection.execute(tables.federations.insert(), [row])

        self.runner.run(create())

    def close(self) -> None:
        self.runner.run(self.database.close())
        self.runner.close()


class StoredWorld(World):
    """Decides everything twice, the second time from slices of a real database, and compares."""

    store: Store

    def send_together(self, messages: Sequence[m.Message[Any]]) -> list[Any]:
        given, entropy = self.state, copy(self._counter)
        answers = super().send_together(messages)
        stored, seen = self.store.runner.run(self._decide_from_slices(messages, given, entropy))
        assert [_comparable(answer) for answer in stored] == [_comparable(answer) for answer in answers], messages
        for kind in TABLES:
            rows, before, after = (state.rows(kind.table) for state in (seen, given, self.state))
            assert all(after[key] == row for key, row in rows.items()), (kind.table, messages)
            changed = [key for key, row in after.items() if row != before.get(key)]
            assert all(rows.get(key) == after[key] for key in changed), (kind.table, messages)
        self.store.mirrored = self.state
        return answers

    def is_stored_as_it_is(self) -> bool:
        return self.store.runner.run(self._read_back()) == {
            kind.table: getattr(self.state, kind.table) for kind in TABLES
        }

    async def _mirror(self, connection: AsyncConnection, state: State) -> None:
        """What pumps, enrolment and purges did meanwhile."""
        await write_changes(connection, self.store.mirrored, state)
        gone = sorted(self.store.mirrored.blobs.keys() - state.blobs.keys())
        await blobs.drop(connection, gone)
        await blobs.remove(connection, gone)
        self.store.mirrored = state

    def purge(self, erasure: Erasure) -> None:
        rows, made, left = self.inventory(erasure)
        found, gone = self.store.runner.run(self._inventory(erasure))
        of_rows = {one.row_id for one in found if one.kind not in ("step", *LEFT)}
        assert of_rows == {row.id for row in rows}
        steps = {one.digest for one in found if one.kind == "step"}
        assert steps == {job.output for job in made} | {b.digest for b in left if b.origin == "job"}
        assert {one.row_id for one in found if one.kind in LEFT} == {b.id for b in left if b.origin == "task"}
        assert gone == self.blobs_of(erasure, rows, made, left)
        super().purge(erasure)

    async def _inventory(self, erasure: Erasure) -> tuple[list[FoundArtefact], set[UUID]]:
        async with self.store.database.write() as connection:
            await self._mirror(connection, self.state)
            request = await erasure_record(connection, erasure.id)
            found = await inventory(connection, request, None)
            await record(connection, erasure.id, found)
            return found, set(await blobs_of(connection, request, found))

    async def _read_back(self) -> dict[str, Any]:
        async with self.store.database.write() as connection:
            await self._mirror(connection, self.state)
            return {kind.table: {row.key: row for row in await fetch(connection, kind)} for kind in TABLES}

    async def _decide_from_slices(
        self, messages: Sequence[m.Message[Any]], given: State, entropy: Iterator[int]
    ) -> tuple[list[Any], State]:
        answers: list[Any] = []
        async with self.store.database.write() as connection:
            await self._mirror(connection, given)
            state, waiting = NOTHING_LOADED, deque([list(messages)])
            while waiting:
                batch = waiting.popleft()
                before = state = await load(connection, batch, state)
                next_batch: list[m.Message[Any]] = []
                for message in batch:
                    try:
                        decision = decide(state, m.Envelope(message, self.now, next(entropy).to_bytes(16)))
                    except Rejected as rejection:
                        answers.append(rejection)
                        continue
                    state = decision.state
                    answers.append(decision.reply)
                    commands = [command for event in decision.events for command in react(event, state)]
                    next_batch += [command.message for command in commands if isinstance(command, FollowUp)]
                await write_changes(connection, before, state)
                if next_batch:
                    waiting.append(next_batch)
        return answers[: len(messages)], state


def _comparable(answer: Any) -> Any:
    return answer.code if isinstance(answer, Rejected | Refused) else answer


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    store.open()
    yield store
    store.close()


@pytest.mark.parametrize("seed", [0, 1, 2, 12, 13, 101])
def test_slices_lead_to_the_same_decisions_as_the_whole_world(seed: int, store: Store) -> None:
    class StoredMachine(EngineMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = StoredWorld(figures_of=self.world.figures_of)
            self.world.store = store

        def teardown(self) -> None:
            super().teardown()
            assert isinstance(self.world, StoredWorld) and self.world.is_stored_as_it_is()

    walk([seed], machine_type=StoredMachine)


def test_a_round_reads_the_members_of_its_cohort_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    world = StoredWorld()
    world.store = store
    world.enrol("a", "b", "c")
    world.store_blob(DATA)
    world.provenance[DATA] = frozenset()
    run_id = world.create_run(validation={"data": DATA})
    world.settle()

    read: list[type[Any]] = []

    async def fetch_noted(connection: AsyncConnection, kind: type[Any], *arguments: Any) -> list[Any]:
        read.append(kind)
        return await fetch_by(connection, kind, *arguments)

    monkeypatch.setattr(loading, "fetch_by", fetch_noted)
    world.claim_and_submit("a", "b", "c")
    world.settle()
    assert world.cohort(run_id).round == 1
    assert read.count(Member) == 1
