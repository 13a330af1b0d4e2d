"""Homes that the release with schema 0001 made are upgraded with all they hold, trained on, and erased from."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

import migrations
from coordinator.engine.messages import ResumeRun
from coordinator.store import schema
from coordinator.store import tables as t
from coordinator.store.database import Database
from services.audit.certificate import verify_bytes
from services.audit.keys import public_pem
from services.audit.predicate import KINDS
from services.audit.verification import Beside, check
from tests.golden.home_0001 import ERASURES, HERE
from tests.integration.test_approximate_erasure import assert_nothing_is_left_of, forget
from tests.support.federation import Federation, reopened
from tests.support.servers import postgres_binaries

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The home of that back end lies in `tmp_path`, as the earlier release left it."""
    with tarfile.open(HERE / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    if request.param == "sqlite":
        return None
    found: str = request.getfixturevalue("postgres_url")
    place = make_url(found)
    command = [postgres_binaries() / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", place.host, "-p", place.port]
    command += ["-U", place.username, "-d", place.database, "-f", tmp_path / "home/dump.sql"]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return found


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
        assert {name: after[name] for name in before} == before
        assert before["certificates"] == 3 and before["kept_updates"] > 0 and before["updates"] > 0
    finally:
        await database.close()


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
        issuer = await f.coordinator.erasing.public_key()
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
        files = f.coordinator.erasing.certifying.files
        issuer = public_pem(await f.coordinator.erasing.public_key())
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
