"""`lethe doctor` finds each of these faults by its name on every back end, mends those that can be mended, and finds
nothing before and after."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from coordinator.engine.entities import Blob
from coordinator.keys.port import client_key, cohort_key
from coordinator.runtime.blob_sealer import operators_blob
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.doctor.examination import examine
from coordinator.runtime.doctor.findings import Installation
from coordinator.runtime.settings import Settings
from coordinator.runtime.storage import name_of
from coordinator.store import tables as t
from coordinator.store import warm
from coordinator.store.rows import to_entity, to_row
from coordinator.tombstones.files import FileTombstoneLog
from coordinator.tombstones.port import Tombstone
from services.audit.keys import generate_key, save_key
from services.core import digests
from tests.support.federation import federation
from tests.support.health import examined
from tests.support.servers import PostgresServer

pytestmark = pytest.mark.anyio


@dataclass
class Home:
    """An installation that has trained and forgotten a client. `coordinator` has nothing running."""

    settings: Settings
    leaver: UUID
    coordinator: Coordinator

    @property
    def evidence(self) -> Path:
        return self.settings.evidence_path

    async def change(self, statement: sa.Executable | str) -> None:
        async with self.coordinator.database.write() as connection:
            await connection.execute(sa.text(statement) if isinstance(statement, str) else statement)
            await warm.renew(connection, sa.true())

    async def rows(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> list[Any]:
        async with self.coordinator.database.read() as connection:
            return list((await connection.execute(sa.select(table).where(*where))).all())

    async def model(self) -> Blob:
        """One that is served."""
        (row, *_) = await self.rows(t.blobs, t.blobs.c.status == "stored", t.blobs.c.origin == "job")
        return to_entity(Blob, row)

    async def put(self, blob: Blob, data: bytes) -> None:
        await self.coordinator.blobs.delete(blob.federation_id, name_of(blob))
        if data:
            await self.coordinator.blobs.append(blob.federation_id, name_of(blob), 0, len(data), lambda: data)

    async def add(self, data: bytes = b"", **changes: Any) -> Blob:
        """A row, and its bytes if there are any."""
        blank = operators_blob((await self.model()).federation_id, datetime.now(UTC), digests.of_bytes(data), len(data))
        blob = await self.coordinator.sealer.sealed(blank)
        blob = replace(blob, **changes)
        await self.change(t.blobs.insert().values(to_row(blob)))
        await self.put(blob, data)
        return blob

    async def remove(self, blob: Blob) -> None:
        await self.change(t.blobs.delete().where(t.blobs.c.id == blob.id))
        await self.put(blob, b"")


@pytest.fixture(scope="module", params=["sqlite", "postgres", "postgres-blobs"])
async def settings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Settings, UUID]]:
    directory, url, changes = tmp_path_factory.mktemp("doctor"), None, dict[str, Any]()
    server: PostgresServer | None = None
    if request.param != "sqlite":
        server = request.getfixturevalue("postgres_server")
        assert server is not None
        url = server.new_database()
        changes["blobs"] = "postgres" if request.param == "postgres-blobs" else "file"
    async with federation(directory, "a", "b", "c", url=url, **changes) as f:
        f.work()
        run = await f.create_run(stop={"rounds": 3})
        assert (await f.wait_for_run(run)).status == "completed"
        assert (await f.wait_for_erasure(await f.erase("a"))).status == "completed"
        assert (await f.wait_for_run(run)).status == "completed"
        made = f.coordinator.settings, f.clients["a"]
    yield made
    if url is not None and server is not None:
        server.drop_database(url)


@pytest.fixture
async def home(settings: tuple[Settings, UUID]) -> AsyncIterator[Home]:
    coordinator = Coordinator(settings[0])
    yield Home(*settings, coordinator)
    await coordinator.close()


# --- faults: each is undone at the end of its context, as far as it was not mended ------------------------------------

Plant = Callable[[Home], AbstractAsyncContextManager[None]]


@contextmanager
def moved(path: Path) -> Iterator[Path]:
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        yield path
    finally:
        aside.replace(path)


@contextmanager
def written(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


@asynccontextmanager
async def an_orphan(home: Home) -> AsyncIterator[None]:
    owner = (await home.model()).federation_id
    await home.coordinator.blobs.append(owner, uuid4().hex, 0, 8, lambda: bytes(8))
    yield


@asynccontextmanager
async def a_part_of_an_older_version(home: Home) -> AsyncIterator[None]:
    place = home.settings.blob_path / "parts" / str(uuid4())
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    (place / "upload").touch(0o600)
    yield


def bytes_that_are(changed: Callable[[bytes], bytes]) -> Plant:
    @asynccontextmanager
    async def plant(home: Home) -> AsyncIterator[None]:
        blob = await home.model()
        before = await home.coordinator.blobs.read(blob.federation_id, name_of(blob), 0, 1 << 30)
        await home.put(blob, changed(before))
        yield
        await home.put(blob, before)

    return plant


def a_key_that_is(changed: Callable[[Path], Any]) -> Plant:
    @asynccontextmanager
    async def plant(home: Home) -> AsyncIterator[None]:
        blob = await home.model()
        assert blob.key_name is not None
        with changed(home.evidence / "keys" / blob.key_name):
            yield

    return plant


@asynccontextmanager
async def a_key_of_who_left(home: Home) -> AsyncIterator[None]:
    (home.evidence / "keys" / client_key(home.leaver)).write_bytes(os.urandom(32))
    yield


@asynccontextmanager
async def a_key_of_an_epoch_that_was_cut(home: Home) -> AsyncIterator[None]:
    (line, *_) = await home.rows(t.lines)
    (home.evidence / "keys" / cohort_key(line.cohort_id, line.epoch_before)).write_bytes(os.urandom(32))
    yield


def others_may_read(place: Callable[[Home], Path]) -> Plant:
    @asynccontextmanager
    async def plant(home: Home) -> AsyncIterator[None]:
        place(home).chmod(0o755 if place(home).is_dir() else 0o644)
        yield

    return plant


def first_key(home: Home) -> Path:
    return next(path for path in (home.evidence / "keys").iterdir() if path.name.startswith("cohort-"))


def statements(plant: str, undo: str) -> Plant:
    @asynccontextmanager
    async def planted(home: Home) -> AsyncIterator[None]:
        await home.change(plant)
        yield
        await home.change(undo)

    return planted


def revision(said: str) -> Plant:
    import migrations

    change = "UPDATE alembic_version SET version_num = '{}'"
    return statements(change.format(said), change.format(migrations.NEWEST))


def a_log_that_is(changed: Callable[[bytes], bytes]) -> Plant:
    @asynccontextmanager
    async def plant(home: Home) -> AsyncIterator[None]:
        path = home.evidence / "tombstones.jsonl"
        with written(path, changed(path.read_bytes())):
            yield

    return plant


@asynccontextmanager
async def a_log_that_is_longer(home: Home) -> AsyncIterator[None]:
    path = home.evidence / "tombstones.jsonl"
    (client, *_) = await home.rows(t.clients, t.clients.c.status == "active")
    entry = Tombstone(
        request_id=uuid4(),
        federation_id=client.federation_id,
        scope="client",
        client_ids=(client.id,),
        cohorts=(),
        at=datetime.now(UTC),
    )
    with written(path, path.read_bytes()):
        FileTombstoneLog(path).append(entry)
        yield


@asynccontextmanager
async def no_signing_key(home: Home) -> AsyncIterator[None]:
    with moved(home.evidence / "signing-key.pem"):
        yield


@asynccontextmanager
async def another_signing_key(home: Home) -> AsyncIterator[None]:
    with moved(home.evidence / "signing-key.pem") as path:
        save_key(path, generate_key())
        yield


def nothing_like(pattern: str) -> Plant:
    @asynccontextmanager
    async def plant(home: Home) -> AsyncIterator[None]:
        (path,) = home.evidence.glob(pattern)
        with moved(path):
            yield

    return plant


@asynccontextmanager
async def a_changed_list(home: Home) -> AsyncIterator[None]:
    """One line of it is gone."""
    (path,) = home.evidence.glob("certificates/*.list.jsonl")
    with written(path, b"".join(path.read_bytes().splitlines(keepends=True)[1:])):
        yield


@asynccontextmanager
async def a_damaged_certificate(home: Home) -> AsyncIterator[None]:
    (row,) = await home.rows(t.certificates)
    await home.change(t.certificates.update().values(envelope=row.envelope[:-10]))
    yield
    await home.change(t.certificates.update().values(envelope=row.envelope))


def a_blob(data: bytes, **changes: Any) -> Plant:
    @asynccontextmanager
    async def plant(home: Home) -> AsyncIterator[None]:
        blob = await home.add(data, **changes)
        yield
        await home.remove(blob)

    return plant


@asynccontextmanager
async def a_blob_of_who_left(home: Home) -> AsyncIterator[None]:
    async with a_blob(bytes(8), status="stored", origin="task", origin_id=uuid4(), client_id=home.leaver)(home):
        yield


@asynccontextmanager
async def a_superseded_model_that_is_stored(home: Home) -> AsyncIterator[None]:
    (erasure,) = await home.rows(t.erasures)
    blob = await home.model()
    its = t.checkpoints.update().where(t.checkpoints.c.digest == blob.digest, t.checkpoints.c.epoch == blob.epoch)
    await home.change(its.values(superseded_by=erasure.id))
    yield
    await home.change(its.values(superseded_by=None))


@asynccontextmanager
async def a_scratch_directory(home: Home) -> AsyncIterator[None]:
    (home.settings.home / "scratch").mkdir(exist_ok=True, mode=0o700)
    (home.settings.home / "scratch" / "tmp-of-a-dead-process").mkdir(mode=0o700)
    yield


@asynccontextmanager
async def a_damaged_file(home: Home) -> AsyncIterator[None]:
    path = home.settings.home / "lethe.db"
    await home.coordinator.database.forget_pages()
    await home.coordinator.database.close()
    kept = path.read_bytes()
    damaged = bytearray(kept)
    for start in range(4096 * 3, len(damaged), 4096 * 5):
        damaged[start : start + 64] = os.urandom(64)
    with written(path, bytes(damaged)):
        yield


def rows_that_say_stored(table: sa.Table) -> Plant:
    @asynccontextmanager
    async def plant(home: Home) -> AsyncIterator[None]:
        (row, *_) = await home.rows(table, ~table.c.stored, table.c.digest.is_not(None))
        own = table.update().where(table.c.id == row.id)
        await home.change(own.values(stored=True))
        yield
        await home.change(own.values(stored=False))

    return plant


@dataclass(frozen=True)
class Fault:
    name: str
    plant: Plant
    is_mended: bool = False
    is_deep: bool = False
    only: str = ""
    """On these back ends alone."""
    is_note: bool = False


FOREVER_AGO = datetime.now(UTC) - timedelta(days=2)
FAULTS = {
    "an orphan": Fault("orphan-bytes", an_orphan, is_mended=True),
    "a part of an older version": Fault("old-parts", a_part_of_an_older_version, is_mended=True, only="file"),
    "no bytes": Fault("missing-bytes", bytes_that_are(lambda data: b"")),
    "bytes cut off": Fault("truncated-bytes", bytes_that_are(lambda data: data[:-1])),
    "a segment's overhead cut off": Fault("truncated-bytes", bytes_that_are(lambda data: data[:-32])),
    "bytes changed": Fault(
        "changed-bytes", bytes_that_are(lambda data: data[:-1] + bytes([data[-1] ^ 1])), is_deep=True
    ),
    "no key": Fault("missing-key", a_key_that_is(moved)),
    "another key": Fault("other-key", a_key_that_is(lambda path: written(path, os.urandom(32)))),
    "a key of who left": Fault("outlived-keys", a_key_of_who_left, is_mended=True),
    "a key of a cut epoch": Fault("outlived-keys", a_key_of_an_epoch_that_was_cut, is_mended=True),
    "a key for all": Fault("key-permissions", others_may_read(first_key), is_mended=True),
    "evidence for all": Fault("permissions", others_may_read(lambda home: home.evidence), is_mended=True),
    "home for all": Fault("permissions", others_may_read(lambda home: home.settings.home), is_mended=True),
    "a database for all": Fault(
        "permissions", others_may_read(lambda home: home.settings.home / "lethe.db"), is_mended=True, only="sqlite"
    ),
    "a schema that is behind": Fault("schema", revision("0004")),
    "a schema that is ahead": Fault("schema", revision("9999")),
    "a missing column": Fault(
        "schema",
        statements("ALTER TABLE erasures DROP COLUMN fallback", "ALTER TABLE erasures ADD COLUMN fallback VARCHAR(16)"),
    ),
    "an empty log": Fault("tombstones-lost", a_log_that_is(lambda data: b"")),
    "a changed log": Fault("tombstones-damaged", a_log_that_is(lambda data: data.replace(b'"client"', b'"samples"'))),
    "a longer log": Fault("database-restored", a_log_that_is_longer),
    "no signing key": Fault("missing-signing-key", no_signing_key),
    "another signing key": Fault("other-signing-key", another_signing_key),
    "no list": Fault("missing-list", nothing_like("certificates/*.list.jsonl")),
    "a changed list": Fault("changed-list", a_changed_list, is_deep=True),
    "a damaged certificate": Fault("damaged-certificate", a_damaged_certificate),
    "no opening": Fault("missing-opening", nothing_like("openings/*.json")),
    "a dropped blob": Fault("dropped-blobs", a_blob(bytes(8), status="dropping"), is_mended=True),
    "an abandoned upload": Fault("abandoned-uploads", a_blob(b"", created_at=FOREVER_AGO), is_mended=True),
    "a scratch directory": Fault("scratch", a_scratch_directory, is_mended=True),
    "a blob of who left": Fault("erased-but-stored", a_blob_of_who_left),
    "a superseded model": Fault("erased-but-stored", a_superseded_model_that_is_stored),
    "a plain blob": Fault("plain-blobs", a_blob(b"plain", status="stored", data_key=None, key_name=None), is_note=True),
    "a damaged file": Fault("database-integrity", a_damaged_file, only="sqlite"),
    "an update without a blob": Fault("rows-without-blob", rows_that_say_stored(t.updates)),
    "a model without a blob": Fault("rows-without-blob", rows_that_say_stored(t.checkpoints)),
}


@pytest.mark.parametrize("which", FAULTS)
async def test_the_doctor_finds_a_planted_fault_by_its_name_and_mends_what_can_be_mended(
    which: str, home: Home
) -> None:
    fault = FAULTS[which]
    if (fault.only == "sqlite" and not home.settings.is_embedded) or fault.only == "file" != home.settings.blobs:
        pytest.skip("not on this back end")
    async with fault.plant(home):
        found = await examined(home.settings, is_deep=fault.is_deep)
        assert fault.name in {one.name for one in found.left}, found.left
        assert found.is_well == fault.is_note
        assert all(one.what and one.remedy for one in found.left)
        after = await examined(home.settings, repairs=True, is_deep=fault.is_deep)
        assert (fault.name in {one.name for one in after.mended}) == fault.is_mended
        assert after.is_well == (fault.is_mended or fault.is_note), after.left
    left = await examined(home.settings, is_deep=True)
    assert left.is_well and not left.mended, left.left
    assert not left.left, left.left


async def test_a_coordinator_that_was_named_and_does_not_answer_is_a_fault(tmp_path: Path) -> None:
    async with federation(tmp_path, "a") as f:
        found = await examine(Installation(f.coordinator, url="http://127.0.0.1:9"))
    assert [one.name for one in found.left] == ["coordinator-silent"] and not found.is_well


async def test_twenty_kinds_of_faults_are_planted() -> None:
    assert len({fault.name for fault in FAULTS.values()}) >= 20


async def test_the_doctor_finds_nothing_beside_a_coordinator_that_trains(tmp_path: Path) -> None:
    """Uploads, deletions, kernels and an erasure go on all the time while it looks, and while it repairs."""
    async with federation(tmp_path, "a", "b", "c") as f:
        f.work()
        run = await f.create_run(stop={"rounds": 20})
        erasure = None
        for number in range(6):
            report = await examined(f.coordinator.settings, repairs=number % 2 == 1, is_deep=True)
            assert report.is_well and not report.mended, report
            erasure = erasure or (await f.erase("a") if number == 2 else None)
        assert erasure is not None
        assert (await f.wait_for_erasure(erasure)).status == "completed"
        assert (await f.wait_for_run(run)).status == "completed"
    assert (await examined(f.coordinator.settings, is_deep=True)).left == ()
