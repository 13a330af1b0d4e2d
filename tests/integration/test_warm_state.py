"""What a process remembers of cohorts is what the database says, whoever wrote to it meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from coordinator.bus.local import LocalBus
from coordinator.engine.entities import OPEN_TASK, Blob, Cohort, Facts, Member, Round, Run, Task, Update
from coordinator.engine.messages import (
    ClaimTasks,
    CreateRun,
    FailTask,
    JobDone,
    JoinRun,
    PauseRun,
    RecordBlob,
    RemoveClient,
    ResumeRun,
    SubmitResult,
)
from coordinator.engine.replies import Granted
from coordinator.runtime.blob_sealer import operators_blob
from coordinator.runtime.shell import Shell
from coordinator.store import accounts, blobs, outbox, warm
from coordinator.store import tables as t
from coordinator.store.database import Database
from coordinator.store.rows import fetch
from services.core import digests
from services.core.errors import Rejected
from services.wire.v1.resources import FederationCreate
from services.wire.v1.runs import RunSpec
from tests.support.servers import PostgresServer
from tests.support.transactions import NotStamped, written_by
from tests.support.world import START

pytestmark = pytest.mark.anyio
FEDERATION = UUID(int=1)
CLIENTS = {name: UUID(int=number) for number, name in enumerate("abcd", 10)}
INIT, LAYOUT = digests.of_bytes(b"init"), digests.of_bytes(b"layout")
_numbers = itertools.count()


@dataclass
class Replica:
    """One process: its own connections, and what it remembers."""

    database: Database
    shell: Shell

    async def claim(self, name: str) -> tuple[Granted, ...]:
        return await self.shell.handle(ClaimTasks(CLIENTS[name]))

    async def submit(self, granted: Granted) -> SubmitResult:
        """The message, which was accepted."""
        task = granted.task
        made = replace(
            operators_blob(FEDERATION, START, digests.of_bytes(str(next(_numbers)).encode()), 8),
            origin="task",
            origin_id=task.id,
            client_id=task.client_id,
            cohort_id=task.cohort_id,
            epoch=task.epoch,
            status="stored",
            layout_digest=LAYOUT,
            finite=True,
        )
        await self._store(made)
        message = SubmitResult(task.id, task.client_id, task.lease_token or "", made.digest, 10)
        await self.shell.handle(message)
        return message

    async def compute(self) -> bool:
        """Carry out the next kernel; whether there was one."""
        async with self.database.write() as connection:
            now = await self.database.now(connection)
            job = await outbox.lease_job(connection, ("kernel",), now, 60.0, "token")
        if job is None:
            return False
        digest = digests.of_bytes(job.id.bytes)
        made = replace(operators_blob(FEDERATION, START, digest, 8), origin="job", origin_id=job.id)
        await self._store(made)
        record = RecordBlob(made.id, FEDERATION, digest, Facts(8, LAYOUT, LAYOUT, finite=True))
        assert await self.shell.handle(JobDone(job.id, "token", record))
        return True

    async def _store(self, blob: Blob) -> None:
        async with self.database.write() as connection:
            await blobs.announce(connection, [blob])

    async def rows(self, table: sa.Table) -> list[Any]:
        async with self.database.read() as connection:
            return list(await connection.execute(sa.select(table)))

    async def check(self) -> int:
        """That it remembers nothing that is not so, where it would believe itself; returns of how many cohorts."""
        stamps = {row.id: (row.stamp, row.members_stamp) for row in await self.rows(t.cohorts)}
        num_believed = 0
        async with self.database.read() as connection:
            found: dict[Any, list[Any]] = {
                kind: await fetch(connection, kind) for kind in (Cohort, Run, Round, Task, Update, Member)
            }
        for cohort_id, known in self.shell._warm._cohorts.items():
            stamp, members_stamp = stamps[cohort_id]
            own = {
                kind: {r.key: r for r in rows if getattr(r, "cohort_id", None) == cohort_id}
                for kind, rows in found.items()
            }
            if known.members_stamp == members_stamp and known.has_members:
                assert known.members == own[Member]
                active = sorted(member.name for member in own[Member].values() if member.active)
                assert known.members.found_out.get(("active", cohort_id), active) == active
            if known.stamp != stamp:
                continue
            num_believed += 1
            open_tasks = {key: task for key, task in own[Task].items() if task.status in OPEN_TASK}
            assert known.tasks.items() <= open_tasks.items() and (not known.has_tasks or known.tasks == open_tasks)
            buffered = {key: update for key, update in own[Update].items() if update.status == "buffered"}
            assert known.updates.items() <= buffered.items() and (not known.has_updates or known.updates == buffered)
            assert known.rounds.items() <= own[Round].items()
            assert known.run in (None, *found[Run])
            assert {one: set(ids) for one, ids in known.tasks_of.items()} == {
                client: {task.id for task in known.tasks.values() if task.client_id == client}
                for client in {task.client_id for task in known.tasks.values()}
            }
        return num_believed


Open = Callable[[str], Any]


@pytest.fixture
async def open_replica() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def opened(url: str) -> Replica:
            database = Database(url)
            stack.push_async_callback(database.close)
            shell = Shell(database, LocalBus())
            shell.start()
            stack.push_async_callback(shell.close)
            return Replica(database, shell)

        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
    else:
        url = f"sqlite:///{tmp_path / 'lethe.db'}"
    database = Database(url)
    async with database.write() as connection:
        if request.param == "sqlite":
            await connection.run_sync(t.metadata.create_all)
        await accounts.add_federation(connection, FEDERATION, FederationCreate(name="federation"), START)
        await accounts.add_clients(connection, {name: CLIENTS[name] for name in "abc"}, FEDERATION, START)
        init = replace(operators_blob(FEDERATION, START, INIT, 8), status="stored", finite=True)
        await blobs.announce(connection, [replace(init, layout_digest=LAYOUT, updatable_digest=LAYOUT)])
    await database.close()
    return url


async def start(replica: Replica, **changes: Any) -> UUID:
    spec = {
        "name": "run",
        "model": {"name": "custom"},
        "init": INIT,
        "stop": {"rounds": 20},
        "max_attempts": 9,
        **changes,
    }
    run_id = uuid4()
    await replica.shell.handle(CreateRun(run_id, FEDERATION, RunSpec.model_validate(spec)))
    return run_id


async def play_round(one: Replica, other: Replica, names: str = "abc") -> None:
    """Claims, answers and the aggregation alternate between two replicas."""
    for name, (claims, answers) in zip(names, itertools.cycle([(one, other), (other, one), (one, one)])):
        (granted,) = await claims.claim(name)
        message = await answers.submit(granted)
        assert await claims.shell.handle(message) == await answers.shell.handle(message)
    assert await other.compute() and not await one.compute()
    for replica in (one, other):
        await replica.check()


async def test_who_the_members_are_is_found_out_once_and_anew_when_one_leaves(url: str, open_replica: Open) -> None:
    """There may be a million of them, and every round asks."""
    replica = await open_replica(url)
    await start(replica)
    for _ in range(2):  # the first reading opens another connection, and what is known is read again
        await play_round(replica, replica)
    ((cohort_id, known),) = replica.shell._warm._cohorts.items()
    names = known.members.found_out["active", cohort_id]
    await play_round(replica, replica)
    assert replica.shell._warm._cohorts[cohort_id].members.found_out["active", cohort_id] is names == ["a", "b", "c"]
    await replica.shell.handle(RemoveClient(CLIENTS["b"]))
    await play_round(replica, replica, "ac")
    assert replica.shell._warm._cohorts[cohort_id].members.found_out["active", cohort_id] == ["a", "c"]


async def test_two_replicas_that_take_turns_decide_everything_once(url: str, open_replica: Open) -> None:
    one, other = await open_replica(url), await open_replica(url)
    await start(one)
    for turn in range(4):
        await play_round(*((one, other) if turn % 2 else (other, one)))
    updates, rounds = await one.rows(t.updates), await one.rows(t.rounds)
    assert len(updates) == 4 * 3 and {row.status for row in updates} == {"consumed"}
    assert sorted((row.number, row.num_received) for row in rounds) == [(1, 3), (2, 3), (3, 3), (4, 3), (5, 0)]
    contributions = await one.rows(t.contributions)
    assert len(contributions) == len({row.update_id for row in contributions}) == 4 * 3
    assert await one.check() + await other.check() >= 1


async def test_what_two_replicas_do_at_the_same_time_is_decided_once(url: str, open_replica: Open) -> None:
    one, other = await open_replica(url), await open_replica(url)
    await start(one)
    for _ in range(3):
        claims = [(replica, name) for name in "abc" for replica in (one, other)]
        granted = [task for answer in await asyncio.gather(*(r.claim(n) for r, n in claims)) for task in answer]
        assert sorted(task.task.client_name for task in granted) == ["a", "b", "c"]
        await asyncio.gather(*(r.submit(task) for r, task in zip((one, other, one), granted, strict=True)))
        assert sum(await asyncio.gather(one.compute(), other.compute())) == 1
        await one.check()
        await other.check()
    assert {row.status for row in await one.rows(t.updates)} == {"consumed"}


async def test_what_another_replica_changed_is_seen(url: str, open_replica: Open) -> None:
    one, other = await open_replica(url), await open_replica(url)
    run_id = await start(one)
    await play_round(one, one)
    (granted,) = await one.claim("a")
    await other.shell.handle(
        FailTask(granted.task.id, CLIENTS["a"], granted.task.lease_token or "", False, "tired", handed_back=True)
    )
    (again,) = await one.claim("a")
    assert again.task.id == granted.task.id and again.task.attempt == 2
    with pytest.raises(Rejected, match="handed out again"):
        await other.submit(granted)
    await other.shell.handle(PauseRun(run_id, "operator", "a break"))
    assert await one.claim("b") == ()
    await one.shell.handle(ResumeRun(run_id))
    assert len(await other.claim("b")) == 1
    await one.check()
    await other.check()


async def test_members_stay_known_when_others_work_and_not_when_others_join(url: str, open_replica: Open) -> None:
    one, other = await open_replica(url), await open_replica(url)
    run_id = await start(one)
    (known,) = one.shell._warm._cohorts.values()
    await play_round(other, other)
    await play_round(one, other)
    (still,) = one.shell._warm._cohorts.values()
    assert still.members is known.members and len(still.members) == 3
    async with one.database.write() as connection:
        await accounts.add_clients(connection, {"d": CLIENTS["d"]}, FEDERATION, START)
    await other.shell.handle(JoinRun(run_id, FEDERATION, ("d",)))
    await one.shell.handle(RemoveClient(CLIENTS["a"]))
    await play_round(one, other, "bc")
    await play_round(other, one, "bcd")
    assert await one.check() + await other.check() >= 1


async def test_a_failover_to_a_diverged_database_leaves_nothing_stale(
    url: str, open_replica: Open, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Both databases went on from the same state with as many transactions, and nobody noticed the change."""
    one = await open_replica(url)
    await start(one)
    await play_round(one, one)
    await one.database.close()
    if url.startswith("sqlite"):
        shutil.copy(tmp_path / "lethe.db", tmp_path / "other.db")
        other_url = f"sqlite:///{tmp_path / 'other.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        other_url = server.new_database(template=url.rpartition("/")[2])
    other = await open_replica(other_url)
    (lost,) = await one.claim("a")
    await one.submit(lost)
    (granted,) = await other.claim("a")
    assert granted.task.id == lost.task.id and granted.task.attempt == lost.task.attempt

    one.database = one.shell._database = Database(other_url)
    one.shell._generation = one.database.generation
    with pytest.raises(Rejected, match="handed out again"):  # the token of the other history
        await one.shell.handle(SubmitResult(lost.task.id, CLIENTS["a"], lost.task.lease_token or "", None, 1))
    assert await one.claim("a") == ()
    await one.submit(granted)
    for name in "bc":
        (granted,) = await other.claim(name)
        await one.submit(granted)
    assert await one.compute()
    assert [row.num_received for row in await one.rows(t.rounds) if row.number == 2] == [3]
    await one.check()
    await one.database.close()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_nothing_is_remembered_beyond_a_lost_connection(url: str, open_replica: Open) -> None:
    one, other = await open_replica(url), await open_replica(url)
    await start(one)
    before = one.database.generation
    async with other.database.write() as connection:
        own = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        await connection.execute(sa.text(f"{own} AND pid <> pg_backend_pid()"))
    await play_round(one, other)
    assert one.database.generation != before


async def test_a_transaction_that_fails_is_not_remembered(
    url: str, open_replica: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await open_replica(url)
    await start(one)

    async def broken(*arguments: Any) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr("coordinator.store.journal.write", broken)
        with pytest.raises(InterruptedError):
            await one.claim("a")
    assert not one.shell._warm._cohorts
    await play_round(one, one)


async def test_a_row_written_without_a_stamp_is_told(url: str, open_replica: Open) -> None:
    one = await open_replica(url)
    await start(one)
    with pytest.raises(NotStamped, match="tasks"):
        async with one.database.write() as connection:
            await connection.execute(t.tasks.update().values(due_at=START + timedelta(days=1)))
    assert {row.due_at for row in await one.rows(t.tasks)} == {None}
    async with one.database.write() as connection:
        await connection.execute(t.tasks.update().values(due_at=START))
        await warm.renew(connection, sa.true())
    assert written_by(sa.text("UPDATE members SET active = 0")) == {"members"}
    assert len(await one.claim("a")) == 1
