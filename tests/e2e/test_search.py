"""The search: after an erasure, and after restoring every backup from before it, nothing of the leaver can be found.

Clients train a model of random bytes. Everything that holds the leaver, found by its value and not by what the
coordinator says of it, is noted while it is made: its updates, models with one of them inside, what others trained on
such models. Backups of database and blobs are taken half-way, after training, and between fence and certificate; keys
are not in them. When the erasure is complete, no 64 bytes in a row of all that lie anywhere in the installation or in a
backup: neither as the files lie, nor after opening every object there ever was with every row there ever was and every
key that is left. And no two models that can still be read differ by one of its updates.

A few cases run with every other test; `make search` runs all of them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import sqlalchemy as sa

from coordinator.engine.entities import Task
from coordinator.runtime.sealed_writer import SealedWriter
from coordinator.store import schema
from coordinator.store import tables as t
from coordinator.store.database import Database
from services.audit.keys import public_pem
from services.audit.verification import check
from tests.support.backups import Backup, Installation, store_of
from tests.support.federation import Federation, federation, reopened
from tests.support.searching import WINDOW, Needles, Readable, Store, body_of, floats_of, most_alike, opened
from tests.support.servers import PostgresServer, RedisServer

PATIENCE_S = 300
"""On a busy machine; a case waits for some ten runs and requests."""
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(4 * PATIENCE_S)]
NAMES = [f"c{i}" for i in range(6)]
LEAVER = "c2"
NUM_FLOATS = 16_384
SHARE = 0.02
"""How much of the leaver's data, as a part of it, a model or an update holds at least if it holds any."""
ALIKE = 0.9
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "flat": {"kind": "flat"},
    "clusters": {"kind": "clusters", "num_clusters": 2, "assignment": "random"},
    "tree": {"kind": "tree", "shape": "balanced"},
    "trees-in-clusters": {
        "kind": "clusters",
        "num_clusters": 2,
        "assignment": "random",
        "inside": {"kind": "tree", "shape": "balanced"},
    },
}
APPROXIMATE: dict[str, Any] = {"guarantee": "approximate", "recovery_rounds": 1, "fallback": "retrain"}
METHODS: dict[str, dict[str, Any]] = {
    "retrain": {},
    "reinit": {},
    "federaser": APPROXIMATE,
    "pga": {**APPROXIMATE, "params": {"radius": 5.0, "stop_accuracy": 0.1}},
}
"""A backup from the middle of an approximate method holds what the method reads, under keys that are destroyed since:
then the request goes over to retraining."""
ALL = [
    (method, topology, database, blobs)
    for method in METHODS
    for topology in TOPOLOGIES
    for database, blobs in (("sqlite", "file"), ("postgres", "file"), ("postgres", "postgres"))
    if topology.startswith("tree") or method != "reinit"
]
QUICK = [
    ("retrain", "flat", "sqlite", "file"),
    ("reinit", "tree", "postgres", "postgres"),
    ("federaser", "clusters", "sqlite", "file"),
    ("pga", "flat", "postgres", "file"),
]
PLAIN_TABLE = "CREATE TABLE held (content bytea STORAGE EXTERNAL)"
CASES = ALL if os.environ.get("LETHE_SEARCH") == "all" else QUICK


@dataclass
class Record:
    """Plain bytes as they were made, and whose data they hold."""

    direction: Any
    """The leaver's data."""
    own: set[bytes] = field(default_factory=set)
    """Its updates."""
    made: set[bytes] = field(default_factory=set)
    """All updates, and all that kernels wrote."""

    def share(self, content: bytes) -> float:
        values = floats_of(content)
        return float(abs(values @ self.direction) / (self.direction @ self.direction))

    def holding(self) -> set[bytes]:
        return self.own | {content for content in self.made if is_whole(content) and self.share(content) > SHARE}


def is_whole(content: bytes) -> bool:
    return len(body_of(content)) == 4 * NUM_FLOATS


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """Whose directory is searched, with every backup of it: one that tests share holds what others wrote, and the last
    case would search ten times as much as the first."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.dispose()


@pytest.fixture
def redis_url(request: pytest.FixtureRequest) -> str:
    server: RedisServer = request.getfixturevalue("redis_server")
    server.start()
    server.flush()
    return server.url


def installation(request: pytest.FixtureRequest, directory: Path, database: str, blobs: str) -> Installation:
    if database == "sqlite":
        return Installation(directory)
    server: PostgresServer = request.getfixturevalue("own_postgres")
    return Installation(directory, server, server.new_database(), request.getfixturevalue("redis_url"), blobs)


def recorded(f: Federation, monkeypatch: pytest.MonkeyPatch) -> Record:
    samples = f.samples[LEAVER]
    drawn = [np.random.default_rng([f.data[LEAVER], row]).normal(size=NUM_FLOATS) for row in samples]
    record = Record(sum(drawn) / len(drawn))
    put_bytes, write, close, written = f.put_bytes, SealedWriter.write, SealedWriter.close, dict[int, bytearray]()

    async def put(data: bytes, task: Task | None = None) -> str:
        record.made.add(data)
        if task is not None and task.client_id == f.clients[LEAVER]:
            record.own.add(data)
        return await put_bytes(data, task)

    def note(self: SealedWriter, data: bytes | memoryview) -> None:
        written.setdefault(id(self), bytearray()).extend(data)
        write(self, data)

    def end(self: SealedWriter) -> None:
        close(self)
        if id(self) in written:
            record.made.add(bytes(written.pop(id(self))))

    monkeypatch.setattr(f, "put_bytes", put)
    monkeypatch.setattr(SealedWriter, "write", note)
    monkeypatch.setattr(SealedWriter, "close", end)
    return record


async def train(f: Federation, place: Installation, backups: Path, **spec: Any) -> list[Backup]:
    """Backups of half the way, and of the end."""
    f.init = await f.put({"w": np.random.default_rng(5).normal(scale=0.01, size=NUM_FLOATS).astype(np.float32)})
    f.work()
    run_id = await f.create_run(stop={"rounds": 3}, lease_s=2.0, **spec)
    await f.wait(t.runs, run_id, lambda row: row.status in ("running", "completed"))
    while not await f.rows(t.checkpoints, t.checkpoints.c.round >= 1):
        with f.coordinator.bus.waiter(f"run:{run_id}") as waiter:
            await waiter.wait(0.05)
    half = place.back_up(backups / "half-trained")
    await f.wait_for_run(run_id)
    return [half, place.back_up(backups / "trained", with_data_directory=True)]


async def forget(f: Federation, place: Installation, backups: Path, method: str) -> Backup:
    """The backup that was taken between the fence and the certificate."""
    f.offline |= set(NAMES)
    erasure_id = await f.erase(LEAVER, method=method, **METHODS[method])
    await f.wait(t.erasures, erasure_id, lambda row: row.fenced_at is not None)
    fenced = place.back_up(backups / "fenced")
    f.offline.clear()
    done = await f.wait_for_erasure(erasure_id)
    assert done.status == "completed", done.reason
    assert done.chosen == method
    await settled(f)
    return fenced


async def settled(f: Federation) -> None:
    """Every run has ended, every request is complete, and every certificate verifies."""
    for run in await f.rows(t.runs):
        assert (await f.wait_for_run(run.id)).status == "completed", run.reason
    for erasure in await f.rows(t.erasures):
        done = await f.wait_for_erasure(erasure.id)
        assert done.status == "completed", done.reason
        key = public_pem(f.coordinator.signing_keys.load().public_key())
        (certificate,) = await f.rows(t.certificates, t.certificates.c.erasure_id == erasure.id)
        assert check(certificate.envelope.encode(), key).valid


def assert_nothing_is_found(
    place: Installation,
    stores: list[Store],
    record: Record,
    needles: Needles,
    *,
    is_exact: bool,
    is_nested: bool,
) -> None:
    server = [place.server.data_directory] if place.server is not None and place.server.data_directory else []
    assert needles.found_under(place.directory, *server) == []
    assert needles.found_in(place.copy_of_redis()) is None
    readable = opened(stores, place.keys())
    found = [one.origins for one in readable if needles.found_in(one.plain) is not None]
    assert found == []
    models = models_among(readable)
    assert models, "the served model can be read"
    if is_nested and not is_exact:  # what is left in an approximate model shows beside lines that never had the client
        models = [one for one in models if record.share(one) < SHARE]
    assert most_alike([floats_of(one) for one in models], [floats_of(one) for one in record.own]) < ALIKE
    if is_exact:
        assert max(map(record.share, models)) < SHARE


def models_among(readable: list[Readable]) -> list[bytes]:
    return [one.plain for one in readable if one.origins & {"job", "operator"} and is_whole(one.plain)]


def test_any_window_is_found_wherever_it_lies_and_however_it_is_written() -> None:
    random = np.random.default_rng(7)
    needle, noise = random.bytes(1000), random.bytes(3000)
    needles = Needles([needle, random.bytes(500)])
    assert needles.found_in(noise) is None
    for start in range(0, 1000 - WINDOW + 1, 3):
        window = needle[start : start + WINDOW]
        assert needles.found_in(noise[: start + 5] + window + noise[start + 5 :]) == start + 5
        for text in (window.hex().encode(), base64.b64encode(noise[: start % 3] + window)):
            assert needles.found_in(noise + text) is not None
        assert needles.found_in(noise + bytes([window[0] ^ 1]) + window[1:] + bytes(1)) is None, "a shorter one is none"


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_the_search_finds_plain_bytes_in_files_pages_logs_and_dumps(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = installation(request, tmp_path / "now", database, "file")
    plain = np.random.default_rng(8).bytes(65_536)
    needles = Needles([plain])
    place.home.mkdir(parents=True)
    planted = place.home / "left-behind"
    planted.write_bytes(b"x" * 1001 + plain[5000 : 5000 + WINDOW])
    held = Database(place.url or f"sqlite:///{place.home / 'lethe.db'}")
    await schema.upgrade(held)
    async with held.write() as connection:
        await connection.execute(sa.text("CREATE TABLE held (content BLOB)" if place.url is None else PLAIN_TABLE))
        await connection.execute(sa.text("INSERT INTO held VALUES (:content)"), {"content": plain})
    backup = place.back_up(tmp_path / "backup", with_data_directory=True)
    await held.close()
    assert str(planted) in needles.found_under(place.directory)
    found = {path.removeprefix(f"{backup.directory}/") for path in needles.found_under(backup.directory)}
    if database == "sqlite":
        assert {"lethe.db", "as-it-lies-lethe.db-wal"} <= found
    else:
        assert {path.split("/")[1] for path in found if path.startswith("data/")} >= {"base", "pg_wal"}
        assert "dump.sql" in found
        with redis.Redis.from_url(place.redis_url or "") as client:
            client.set("held", plain)
        assert needles.found_in(place.copy_of_redis()) is not None


@pytest.mark.parametrize(("method", "topology", "database", "blobs"), CASES)
async def test_nothing_of_an_erased_client_can_be_found(
    method: str,
    topology: str,
    database: str,
    blobs: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, kept = installation(request, tmp_path / "now", database, blobs), tmp_path / "backups"
    is_exact, is_nested = "guarantee" not in METHODS[method], topology.startswith("tree")
    async with federation(place.directory, *NAMES, url=place.url, **place.settings) as f:
        record, f.patience_s = recorded(f, monkeypatch), PATIENCE_S
        backups = await train(f, place, kept, topology=TOPOLOGIES[topology])
        lost = record.holding()
        needles = Needles(map(body_of, lost))
        assert needles.found_under(place.directory, kept) == [], "nothing lies plain at any time"
        before = {one.plain for one in opened([await store_of(place)], place.keys())}
        assert lost <= before, "the search can find them, with the keys"
        backups.append(await forget(f, place, kept, method))
        needles = Needles(map(body_of, lost | record.own))
        stores = [await store_of(place)]
    for number, backup in enumerate(backups):
        stores.append(await store_of(backup.restored(tmp_path / f"looked-into-{number}")))
    assert needles.found_under(kept) == []
    assert_nothing_is_found(place, stores, record, needles, is_exact=is_exact, is_nested=is_nested)
    for number, backup in enumerate(backups):
        again = backup.restored(tmp_path / f"restored-{number}")
        async with reopened(again.directory, again.url, **again.settings) as f:
            f.patience_s = PATIENCE_S
            f.work()
            await settled(f)
            assert (await f.rows(t.clients, t.clients.c.name == LEAVER))[0].status == "erased"
            now = await store_of(again)
        assert_nothing_is_found(again, [*stores[1:], now], record, needles, is_exact=is_exact, is_nested=is_nested)
