"""Bytes that no row announces are removed by the coordinator itself, and nobody's upload is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from coordinator.engine.entities import Blob
from coordinator.runtime import orphans
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.orphans import OrphanWatch
from coordinator.runtime.settings import Settings
from coordinator.runtime.storage import name_of
from coordinator.runtime.supervision import WorkHealth
from coordinator.runtime.uploads import UploadRequest
from coordinator.store import blobs as rows
from coordinator.store import tables as t
from services.core import digests
from tests.integration.api.site import until
from tests.support.schemas import make_ready
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.anyio
OWNER = UUID(int=1)


@asynccontextmanager
async def coordinator_on(home: Path, url: str | None, **changes: Any) -> AsyncIterator[Coordinator]:
    """One of which nothing runs."""
    settings = Settings(home=home, database_url=url, blob_reserve_bytes=0, **changes)
    home.mkdir(parents=True, exist_ok=True)
    await make_ready(settings.url)
    coordinator = Coordinator(settings)
    try:
        async with coordinator.database.write() as connection:
            await connection.execute(t.federations.insert().values(id=OWNER, name="f", created_at=datetime.now(UTC)))
        yield coordinator
    finally:
        await coordinator.close()


@pytest.fixture(params=["sqlite", "postgres", "postgres-blobs"])
async def coordinator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordinator]:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    kind = "postgres" if request.param == "postgres-blobs" else "file"
    async with coordinator_on(tmp_path / "home", url, blobs=kind) as made:
        yield made


@asynccontextmanager
async def watched(coordinator: Coordinator) -> AsyncIterator[WorkHealth]:
    """Its watch over orphans runs, and has looked once."""
    health = WorkHealth()
    watching = asyncio.create_task(coordinator.orphan_watch.forever(health))
    try:
        await until(lambda: health.was_ok)
        yield health
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def announced(coordinator: Coordinator, data: bytes) -> Blob:
    """An operator's upload of which nothing has arrived."""
    wanted = UploadRequest(OWNER, None, None, digests.of_bytes(data), len(data))
    return await coordinator.uploads.announce(wanted)


async def append(coordinator: Coordinator, blob: Blob, at: int, data: bytes) -> int:
    return await coordinator.blobs.append(OWNER, name_of(blob), at, len(data), lambda: data)


async def stored_names(coordinator: Coordinator) -> set[str]:
    return {one.name async for one in coordinator.blobs.list()}


async def is_announced(coordinator: Coordinator, blob: Blob) -> bool:
    async with coordinator.database.read() as connection:
        return bool(await rows.by_id(connection, [blob.id]))


@pytest.fixture(scope="module")
def slow_log(servers_wanted: None) -> Iterator[PostgresServer]:
    """A server that writes what need not be durable only every ten seconds, so that it forgets it for certain."""
    server = PostgresServer(wal_writer_delay="10s")
    try:
        server.start()
        if server.is_outside:
            pytest.skip("an outside server cannot be stopped")
        yield server
    finally:
        server.dispose()


async def test_bytes_whose_announcement_the_database_forgot_are_removed_once_it_is_back(
    slow_log: PostgresServer, tmp_path: Path
) -> None:
    async with coordinator_on(tmp_path / "home", slow_log.new_migrated_database()) as coordinator:
        kept = await announced(coordinator, b"recorded by a durable commit")
        await append(coordinator, kept, 0, b"recorded by a durable commit")
        async with coordinator.database.write() as connection:
            await connection.exec_driver_sql("CREATE TABLE durable (id int)")
        async with watched(coordinator) as health:
            blob = await announced(coordinator, b"forgotten")
            await append(coordinator, blob, 0, b"forgotten")
            assert await is_announced(coordinator, blob)
            await asyncio.to_thread(slow_log.restart, "immediate")
            assert not await is_announced(coordinator, blob), "the database forgot nothing: the test shows nothing"
            await until(lambda: _is_gone(coordinator, blob))
            assert await stored_names(coordinator) == {name_of(kept)}
            await until(lambda: health.problem is None)


async def _is_gone(coordinator: Coordinator, blob: Blob) -> bool:
    return name_of(blob) not in await stored_names(coordinator)


async def test_a_coordinator_that_starts_removes_what_is_left_over(coordinator: Coordinator) -> None:
    await coordinator.blobs.append(OWNER, uuid4().hex, 0, 5, lambda: b"noise")
    coordinator.supervisor.start("orphans", coordinator.orphan_watch.forever)
    await until(lambda: _is_empty(coordinator))


async def _is_empty(coordinator: Coordinator) -> bool:
    return not await stored_names(coordinator)


async def test_a_coordinator_watches_for_orphans(tmp_path: Path) -> None:
    async with coordinator_on(tmp_path / "home", None) as coordinator:
        await coordinator.start_api()
        assert "orphans" in coordinator.supervisor.health


async def test_what_appears_later_is_found_by_the_clock(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(orphans, "NOTICED_AFTER_S", 0.01)
    async with watched(coordinator):
        await coordinator.blobs.append(OWNER, uuid4().hex, 0, 5, lambda: b"noise")
        await until(lambda: _is_empty(coordinator))


async def test_uploads_under_way_are_spared_however_often_it_looks(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty uploads in pieces, while this process and another look all the time."""
    monkeypatch.setattr(orphans, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(orphans, "RESTS", 0)
    other = Coordinator(coordinator.settings)
    data = [f"upload {number} ".encode() * 10 for number in range(20)]
    async with watched(coordinator), watched(other):
        sent = await asyncio.gather(*(_send_in_pieces(coordinator, one) for one in data))
    assert await stored_names(coordinator) == {name_of(blob) for blob in sent}
    assert {await coordinator.blobs.size(OWNER, name_of(blob)) for blob in sent} == {len(data[0]), len(data[-1])}
    await other.close()


async def _send_in_pieces(coordinator: Coordinator, data: bytes) -> Blob:
    blob, at = await announced(coordinator, data), 0
    while at < len(data):
        at = await append(coordinator, blob, at, data[at : at + 25])
    return blob


async def test_a_database_that_is_away_is_waited_for(
    slow_log: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the blobs are in it."""
    monkeypatch.setattr(orphans, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(orphans, "NOTICED_AFTER_S", 0.01)
    url = slow_log.new_migrated_database()
    async with coordinator_on(tmp_path / "home", url, blobs="postgres") as coordinator, watched(coordinator) as health:
        await asyncio.to_thread(slow_log.stop)
        await until(lambda: health.problem is not None)
        await asyncio.to_thread(slow_log.start)
        await until(lambda: health.problem is None)
        await coordinator.blobs.append(OWNER, uuid4().hex, 0, 5, lambda: b"noise")
        await until(lambda: _is_empty(coordinator))


async def test_a_look_that_takes_long_is_followed_by_a_longer_rest(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of connections, no more than a twentieth of the time goes into looking."""
    slept: list[float] = []

    async def look(database: object, store: object) -> int:
        await asyncio.sleep(0.01)
        return 0

    async def wait(self: OrphanWatch, num_lost: int, began_at: float, rest_s: float) -> None:
        slept.append(rest_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(orphans, "remove_orphans", look)
    monkeypatch.setattr(OrphanWatch, "_wait", wait)
    async with watched(coordinator):
        await until(lambda: len(slept) >= 2)
    assert min(slept) >= 0.01 * orphans.RESTS


async def test_a_coordinator_with_the_wrong_database_leaves_anothers_bytes_alone(coordinator: Coordinator) -> None:
    """Until somebody says so: `lethe doctor --repair`."""
    stranger, name = uuid4(), uuid4().hex
    await coordinator.blobs.append(stranger, name, 0, 9, lambda: b"not yours")
    await append(coordinator, await announced(coordinator, b"ours"), 0, b"ours")
    async with watched(coordinator):
        assert name in await stored_names(coordinator)
    assert await orphans.remove_orphans(coordinator.database, coordinator.blobs) == 0
    assert await orphans.remove_orphans(coordinator.database, coordinator.blobs, also_of_strangers=True) == 1
    assert name not in await stored_names(coordinator)
