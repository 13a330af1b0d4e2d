"""Homes that the release with schema 0001 made are upgraded with all they hold, trained on, and erased from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

import migrations
from coordinator.engine.messages import CancelRun, ResumeRun
from coordinator.keys.port import is_earlier
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.plain_blob_upgrade import PlainBlobUpgrade
from coordinator.runtime.settings import Settings
from coordinator.store import blobs, schema
from coordinator.store import tables as t
from coordinator.store.database import Database
from services.audit.certificate import verify_bytes
from services.audit.keys import public_pem
from services.audit.predicate import KINDS, PLAIN_BACKUPS
from services.audit.verification import Beside, check
from services.history.spec import UpdateHistory
from services.history.store import keep
from services.history.version_0_1 import restore_sealed
from services.tensors.streams import FileWriter, Stored, StoredFile
from tests.golden.home_0001 import ERASURES, HERE
from tests.integration.api.site import until
from tests.integration.test_approximate_erasure import assert_nothing_is_left_of, forget
from tests.support import earlier_homes
from tests.support.federation import Federation, reopened

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The home of that back end lies in `tmp_path`, as the earlier release left it."""
    found: str | None = None if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    earlier_homes.unpack(request.param, tmp_path, found)
    return found


@pytest.fixture
def nothing_sealed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work in the background has not come to anything."""

    async def forever(self: PlainBlobUpgrade, health: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(PlainBlobUpgrade, "forever", forever)


async def _counts(database: Database) -> dict[str, int]:
    def count(connection: sa.Connection) -> dict[str, int]:
        there = set(sa.inspect(connection).get_table_names()) & set(t.metadata.tables)
        return {
            name: connection.execute(sa.text(f'SELECT count(*) FROM "{name}"')).scalar_one() for name in sorted(there)
        }

    async with database.read() as connection:
        counted: dict[str, int] = await connection.run_sync(count)
        return counted


async def _run_named(f: Federation, name: str) -> UUID:
    (row,) = await f.rows(t.runs, t.runs.c.name == name)
    found: UUID = row.id
    return found


async def test_a_home_of_schema_0001_keeps_every_row_through_the_upgrade(url: str | None, tmp_path: Path) -> None:
    database = Database(url or f"sqlite:///{tmp_path / 'home/lethe.db'}")
    try:
        assert await schema.current(database) == "0001"
        before = await _counts(database)
        await schema.upgrade(database)
        assert await schema.fault(database) is None
        assert await schema.current(database) == migrations.NEWEST
        after = await _counts(database)
        for name in ("blobs", "blob_contents"):  # a row for each who has them; see below
            after.pop(name, None), before.pop(name, None)
        assert {name: after[name] for name in before} == before
        assert before["certificates"] == 3 and before["kept_updates"] > 0 and before["updates"] > 0
    finally:
        await database.close()


async def test_each_who_has_bytes_in_a_home_of_schema_0001_gets_a_row_for_them(url: str | None, tmp_path: Path) -> None:
    """Also uploads that were never submitted, what nobody names, and what two jobs made."""
    database = earlier_homes.database_of(tmp_path, url)
    try:
        async with database.write() as connection:
            await connection.execute(sa.text(_UNSUBMITTED), {"digest": "sha256:" + "1" * 64})
            await connection.execute(sa.text(_NOBODYS), {"digest": "sha256:" + "2" * 64})
            await connection.execute(sa.text(_MADE_TWICE))
        expected = await earlier_homes.expected_origins(database)
        assert {origin for _, origin, *_ in expected} == {"task", "job", "copy", "operator"}
        assert max(Counter(digest for digest, *_ in expected.elements()).values()) > 1
        await schema.upgrade(database)
        assert await earlier_homes.origins(database) == expected
    finally:
        await database.close()


_COLUMNS = "federation_id, digest, num_bytes, layout_digest, updatable_digest, finite, created_at, uploaded_by"
_ONE = "SELECT federation_id, CAST(:digest AS TEXT), num_bytes, layout_digest, updatable_digest, finite, created_at"
_UNSUBMITTED = f"INSERT INTO blobs ({_COLUMNS}) {_ONE}, (SELECT id FROM clients LIMIT 1) FROM blobs LIMIT 1"
_NOBODYS = f"INSERT INTO blobs ({_COLUMNS}) {_ONE}, NULL FROM blobs LIMIT 1"
_MADE_TWICE = (
    "UPDATE jobs SET output = (SELECT output FROM jobs WHERE output IN (SELECT digest FROM blobs) LIMIT 1) "
    "WHERE id = (SELECT id FROM jobs WHERE kind = 'kernel' AND output IS NULL OR output NOT IN "
    "(SELECT digest FROM blobs) LIMIT 1)"
)


async def test_a_home_of_schema_0001_can_be_trained_on_and_erased_from(url: str | None, tmp_path: Path) -> None:
    async with reopened(tmp_path, url) as f:
        assert set(f.clients) == {"c0", "c1", "c2", "c3"}
        whole, halves = await _run_named(f, "whole"), await _run_named(f, "halves")
        served = await f.heads(whole)
        f.work()
        await f.coordinator.shell.handle(ResumeRun(halves))
        assert (await f.wait_for_run(halves)).status == "completed"
        assert await f.heads(whole) == served
        exact = await f.wait_for_erasure(await f.erase("c0"))
        assert exact.status == "completed", exact.reason
        await f.wait_for_run(whole)
        by_history = await forget(f, "c1", "federaser")
        assert by_history.status == "completed", by_history.reason
        for name in ("c0", "c1"):
            await assert_nothing_is_left_of(f, name)
        issuer = f.coordinator.signing_keys.load().public_key()
        for row in await f.rows(t.certificates):
            verify_bytes(row.envelope.encode(), [issuer])


async def test_artefacts_that_a_request_under_way_had_found_have_the_kinds_of_now(
    url: str | None, tmp_path: Path
) -> None:
    database = Database(url or f"sqlite:///{tmp_path / 'home/lethe.db'}")
    made, lone, key = "(SELECT max(output) FROM jobs)", "'sha256:lone'", "'sha256:key'"
    try:
        async with database.write() as connection:
            await connection.execute(sa.text("DELETE FROM artefacts"))
            for kind, digest in (("blob", made), ("blob", lone), ("key", key), ("update", "'sha256:update'")):
                of_one = f"SELECT id, '{kind}', {digest} FROM erasures ORDER BY id LIMIT 1"
                await connection.execute(sa.text(f"INSERT INTO artefacts (erasure_id, kind, digest) {of_one}"))
        await schema.upgrade(database)
        async with database.read() as connection:
            rows = (await connection.execute(sa.select(t.artefacts).order_by(t.artefacts.c.kind))).all()
        assert [row.kind for row in rows] == ["credential", "step", "update", "upload"]
        assert {(row.disposition, row.reason) for row in rows} == {(None, "")}
    finally:
        await database.close()


async def test_requests_of_a_home_of_schema_0001_get_their_openings_and_lose_their_salts(
    url: str | None, tmp_path: Path
) -> None:
    """And what they purged has the kinds of now."""
    async with reopened(tmp_path, url) as f:
        assert {row.salt for row in await f.rows(t.erasures)} == {""}
        kinds = {row.kind for row in await f.rows(t.artefacts)}
        assert kinds >= {"update", "checkpoint"} and kinds <= set(KINDS)
        files = f.coordinator.erasure_steps.certificates.files
        issuer = public_pem(f.coordinator.signing_keys.load().public_key())
        names = {row.erasure_id: row.name for row in await f.rows(t.subjects)}
        for row in await f.rows(t.certificates):
            opening = files.opening_path(row.erasure_id).read_bytes()
            for client, is_about in ((names[row.erasure_id], True), ("somebody else", False)):
                beside = Beside(client=client, opening=opening)
                assert check(row.envelope.encode(), issuer, beside=beside).valid == is_about


@pytest.mark.parametrize("name", list(ERASURES))
async def test_a_certificate_of_the_release_with_schema_0001_still_verifies(name: str) -> None:
    verdict = check((HERE / f"certificate-{name}.json").read_bytes(), (HERE / "issuer.pub.pem").read_bytes())
    assert verdict.valid, verdict


# --- sealing what lies plain ------------------------------------------------------------------------------------------


async def _is_plain(f: Federation) -> bool:
    async with f.coordinator.database.read() as connection:
        return await blobs.are_any_plain(connection)


async def _assert_all_is_sealed(f: Federation, directory: Path, before: dict[str, bytes]) -> None:
    assert not await _is_plain(f)
    assert not set(before) & set(earlier_homes.contents(directory))
    assert not before or earlier_homes.windows_found(directory, before) == []
    assert not any(is_earlier(name) for name in f.coordinator.sealer.keys.names())
    assert [row.kind for row in await f.rows(t.incidents)] == ["sealed-late", "sealed-late"]


async def _assert_all_can_be_read(f: Federation, before: dict[str, bytes]) -> None:
    for row in await f.rows(t.blobs, t.blobs.c.origin != "copy"):
        (blob,) = (await f.coordinator.storage.find(f.id, [row.digest])).values()
        data = await f.coordinator.storage.whole(blob)
        assert earlier_homes.digest_of(data) == row.digest
        assert before.get(row.digest.removeprefix("sha256:"), data) == data


async def test_nothing_lies_plain_in_an_upgraded_home_once_all_is_sealed(url: str | None, tmp_path: Path) -> None:
    before = earlier_homes.contents(tmp_path)
    parts = tmp_path / "home/blobs/parts/a client"
    parts.mkdir(parents=True)
    (parts / "begun").write_bytes(b"".join(before.values()))
    async with reopened(tmp_path, url) as f:
        whole = await _run_named(f, "whole")
        served = await f.heads(whole)
        await until(f.coordinator.upgrade.seal_all, within_s=60.0)  # another is at the same, in the background
        await _assert_all_is_sealed(f, tmp_path, before)
        assert await f.heads(whole) == served
        await _assert_all_can_be_read(f, before)
        await _assert_updates_are_kept_as_they_are(f)


async def _assert_updates_are_kept_as_they_are(f: Federation) -> None:
    """The copies of that release were without loss, so each has become its update."""
    kept = await f.rows(t.kept_updates, t.kept_updates.c.status == "stored")
    assert kept and all([row.digest == row.source and await f.is_stored(row.source) for row in kept])
    own = await f.rows(t.updates, t.updates.c.id.in_([row.update_id for row in kept]))
    assert all(row.stored for row in own)


async def test_two_coordinators_that_seal_the_same_home_end_the_same(
    url: str | None, tmp_path: Path, nothing_sealed_yet: None
) -> None:
    before = earlier_homes.contents(tmp_path)
    async with reopened(tmp_path, url) as f:
        other = Coordinator(Settings(home=tmp_path / "home", database_url=url))
        try:
            await other.evidence.open()
            await asyncio.gather(f.coordinator.upgrade.seal_all(), other.upgrade.seal_all())
            assert await other.upgrade.seal_all()
        finally:
            await other.close()
        await _assert_all_is_sealed(f, tmp_path, before)
        await _assert_all_can_be_read(f, before)
        await _assert_updates_are_kept_as_they_are(f)


KILLED_AT = ("after-announcement", "after-adoption", "after-replacement", "before-end")
_SEAL = """
import asyncio, sys
from pathlib import Path
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import schema

async def main(home, url):
    coordinator = Coordinator(Settings(home=home, database_url=url or None))
    await schema.upgrade(coordinator.database)
    await coordinator.evidence.open()
    await coordinator.upgrade.begin()
    await coordinator.upgrade.seal_all()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("point", KILLED_AT)
async def test_a_kill_while_plain_blobs_are_sealed_loses_nothing_and_leaves_nothing(
    url: str | None, tmp_path: Path, point: str
) -> None:
    before = earlier_homes.contents(tmp_path)
    passage = "" if point == "before-end" else ":5"
    armed = {**os.environ, "LETHE_CRASH_AT": f"upgrade.{point}{passage}"}
    command = [sys.executable, "-c", _SEAL, str(tmp_path / "home"), url or ""]
    killed = await asyncio.to_thread(subprocess.run, command, env=armed, capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    async with reopened(tmp_path, url) as f:
        await until(f.coordinator.upgrade.seal_all, within_s=60.0)  # another is at the same, in the background
        await _assert_all_is_sealed(f, tmp_path, before)
        await _assert_all_can_be_read(f, before)


async def test_a_lossy_copy_of_schema_0001_is_kept_as_it_is_and_sealed_anew(
    url: str | None, tmp_path: Path, nothing_sealed_yet: None
) -> None:
    async with reopened(tmp_path, url) as f:
        row, coded = await _make_lossy(f, tmp_path)
        async with f.coordinator.kept_updates.local(f.id, [row.source]) as files:
            restored = _read(files[row.source])
        assert await f.coordinator.upgrade.seal_all()
        (now,) = await f.rows(t.kept_updates, t.kept_updates.c.id == row.id)
        assert (now.digest, now.dtype) == (earlier_homes.digest_of(coded), "int8")
        (blob,) = (await f.coordinator.storage.find(f.id, [now.digest])).values()
        assert (blob.origin, blob.is_plain) == ("copy", False)
        assert await f.coordinator.storage.whole(blob) == coded
        async with f.coordinator.kept_updates.local(f.id, [row.source]) as files:
            assert _read(files[row.source]) == restored


def _read(stored: Stored) -> bytes:
    with contextlib.closing(stored.open()) as readable:
        data = bytearray(readable.num_bytes)
        readable.read_into(memoryview(data), 0)
        return bytes(data)


async def _make_lossy(f: Federation, directory: Path) -> tuple[Any, bytes]:
    """Put a copy that lost something in the place of one that did not, as the earlier release would have made it."""
    row = (await f.rows(t.kept_updates, t.kept_updates.c.status == "stored"))[0]
    key = (directory / "home/evidence/keys" / str(row.client_id)).read_bytes()
    context = f"{row.cohort_id}/{row.round}/{row.update_id}/{row.source}".encode()
    place = directory / "home/blobs" / str(f.id)
    update = directory / "update"
    with FileWriter(update) as out:
        policy = UpdateHistory(dtype=row.dtype, compression=row.compression)
        restore_sealed(place / row.digest.removeprefix("sha256:"), out, policy, key, context, row.digest)
    assert earlier_homes.digest_of(update.read_bytes()) == row.source
    lossy = directory / "lossy"
    with FileWriter(lossy) as out:
        keep(StoredFile(update), out, UpdateHistory(dtype="int8", compression="zlib"))
    coded = lossy.read_bytes()
    sealed = earlier_homes.seal_as_before(coded, key, context, "int8", "zlib")
    digest = earlier_homes.digest_of(sealed)
    (place / digest.removeprefix("sha256:")).write_bytes(sealed)
    async with f.coordinator.database.write() as connection:
        mine = t.kept_updates.c.id == row.id
        changed = {"digest": digest, "num_bytes": len(sealed)}
        await connection.execute(
            t.kept_updates.update().where(mine).values(**changed, dtype="int8", compression="zlib")
        )
        await connection.execute(t.blobs.update().where(t.blobs.c.digest == row.digest).values(**changed))
    return row, coded


# --- erasing before anything is sealed --------------------------------------------------------------------------------


REQUESTS: dict[str, dict[str, Any]] = {
    "exact": {},
    "federaser": {"method": "federaser", "guarantee": "approximate"},
    "samples": {"scope": "samples", "samples": {"c1": [0, 1]}},
}


@pytest.mark.parametrize("request_name", list(REQUESTS))
async def test_an_erasure_takes_what_lies_plain_and_the_key_of_the_earlier_release(
    url: str | None, tmp_path: Path, nothing_sealed_yet: None, request_name: str
) -> None:
    before = earlier_homes.contents(tmp_path)
    async with reopened(tmp_path, url) as f:
        own = await f.rows(t.blobs, t.blobs.c.client_id == f.clients["c1"])
        others = await f.rows(t.blobs, t.blobs.c.client_id == f.clients["c0"])
        assert {row.origin for row in own} == {"task", "copy"}
        earlier = tmp_path / "home/evidence/keys" / str(f.clients["c1"])
        assert earlier.exists()
        await f.coordinator.shell.handle(CancelRun(await _run_named(f, "halves"), "it stood still"))
        f.work()
        erasure = await f.wait_for_erasure(await f.erase("c1", **REQUESTS[request_name]))
        assert erasure.status == "completed", erasure.reason
        assert (earlier.read_bytes() != bytes(32)) == (request_name == "samples")
        left = earlier_homes.contents(tmp_path)
        gone = {row.digest.removeprefix("sha256:") for row in own} - {
            row.digest.removeprefix("sha256:") for row in others
        }
        assert not gone & set(left)
        await _assert_told(f, erasure.id)
        assert await _is_plain(f)
        assert await f.coordinator.upgrade.seal_all()
        await _assert_all_is_sealed(f, tmp_path, before)
        whole = await _run_named(f, "whole")
        assert (await f.wait_for_run(whole)).status == "completed"


# --- blobs that lie in Postgres ---------------------------------------------------------------------------------------


@pytest.fixture
async def all_in_postgres(tmp_path: Path, empty_postgres_url: str) -> str:
    """A home of the earlier release whose rows and bytes are in this database."""
    earlier_homes.unpack("postgres", tmp_path, empty_postgres_url)
    database = Database(empty_postgres_url)
    await earlier_homes.move_to_postgres(tmp_path, database)
    await database.close()
    return empty_postgres_url


async def test_plain_blobs_in_postgres_are_sealed_in_the_background(all_in_postgres: str, tmp_path: Path) -> None:
    async with reopened(tmp_path, all_in_postgres, blobs="postgres") as f:
        served = await f.heads(await _run_named(f, "whole"))
        await until(f.coordinator.upgrade.seal_all, within_s=60.0)
        await _assert_all_is_sealed(f, tmp_path, {})
        left = await earlier_homes.contents_in_postgres(f.coordinator.database)
        assert left and all(len(name) == 32 for name in left), "names of plain blobs are digests"
        assert await f.heads(await _run_named(f, "whole")) == served
        await _assert_all_can_be_read(f, {})
        await _assert_updates_are_kept_as_they_are(f)


async def test_an_erasure_takes_what_lies_plain_in_postgres(
    all_in_postgres: str, tmp_path: Path, nothing_sealed_yet: None
) -> None:
    """Its certificate says that something lay plain, and so do those after all is sealed: backups may have it."""
    async with reopened(tmp_path, all_in_postgres, blobs="postgres") as f:
        before = await earlier_homes.contents_in_postgres(f.coordinator.database)
        own = await f.rows(t.blobs, t.blobs.c.client_id == f.clients["c1"])
        others = {row.digest for row in await f.rows(t.blobs, t.blobs.c.client_id != f.clients["c1"])}
        gone = {row.digest.removeprefix("sha256:") for row in own if row.digest not in others}
        assert gone and gone <= set(before)
        await f.coordinator.shell.handle(CancelRun(await _run_named(f, "halves"), "it stood still"))
        f.work()
        await _assert_erased_and_told(f, "c1")
        assert not gone & set(await earlier_homes.contents_in_postgres(f.coordinator.database))
        assert await _is_plain(f)
        assert await f.coordinator.upgrade.seal_all()
        await _assert_all_is_sealed(f, tmp_path, {})
        left = await earlier_homes.contents_in_postgres(f.coordinator.database)
        assert earlier_homes.where_found(left, before) == []
        await _assert_erased_and_told(f, "c2")
        assert (await f.wait_for_run(await _run_named(f, "whole"))).status == "completed"


async def _assert_erased_and_told(f: Federation, name: str) -> None:
    erasure = await f.wait_for_erasure(await f.erase(name))
    assert erasure.status == "completed", erasure.reason
    await _assert_told(f, erasure.id)


async def _assert_told(f: Federation, erasure_id: UUID) -> None:
    """The certificate says that something lay plain."""
    (certificate,) = await f.rows(t.certificates, t.certificates.c.erasure_id == erasure_id)
    statement = verify_bytes(certificate.envelope.encode(), [f.coordinator.signing_keys.load().public_key()])
    assert PLAIN_BACKUPS in statement.predicate.limits
