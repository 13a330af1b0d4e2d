"""Backups that are made while all goes on, and restores after which nobody who was erased comes back, on every back
end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from coordinator.engine.entities import Blob
from coordinator.keys.directory import DirectoryKeys
from coordinator.runtime.backup import keys, restoring, saving
from coordinator.runtime.backup.manifest import BackupUnusable, Manifest
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.settings import Settings
from coordinator.store import tables as t
from coordinator.store.rows import to_entity
from services.core import digests
from services.core.errors import Rejected
from tests.support.federation import Federation, federation, reopened
from tests.support.health import assert_healthy, examined
from tests.support.servers import PostgresServer, postgres_binaries

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    """Where installations of one kind live."""

    directory: Path
    server: PostgresServer | None
    settings: dict[str, Any] = field(default_factory=dict)
    urls: list[str] = field(default_factory=list)

    def new_database(self) -> str | None:
        if self.server is None:
            return None
        self.urls.append(self.server.new_database())
        return self.urls[-1]


@pytest.fixture(params=["sqlite", "postgres", "postgres-blobs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "sqlite":
        yield Place(tmp_path, None)
        return
    monkeypatch.setenv("PATH", f"{postgres_binaries()}{os.pathsep}{os.environ['PATH']}")
    found = Place(tmp_path, request.getfixturevalue("postgres_server"))
    found.settings["blobs"] = "postgres" if request.param == "postgres-blobs" else "file"
    yield found
    assert found.server is not None
    for url in found.urls:
        found.server.drop_database(url)


async def put_back(settings: Settings, root: Path, *, force: bool = False) -> Manifest:
    coordinator = Coordinator(settings)
    try:
        return await restoring.restore(coordinator, root, force=force)
    finally:
        await coordinator.close()


async def stored_blobs(f: Federation, *where: Any) -> list[Blob]:
    return [to_entity(Blob, row) for row in await f.rows(t.blobs, t.blobs.c.status == "stored", *where)]


async def test_a_run_goes_on_from_a_backup_that_was_made_while_it_trained(place: Place) -> None:
    async with federation(place.directory / "first", "a", "b", "c", url=place.new_database(), **place.settings) as f:
        f.work()
        run = await f.create_run(stop={"rounds": 8}, lease_s=5.0)  # what is restored waits for the leases of its tasks
        (cohort,) = await f.rows(t.cohorts, t.cohorts.c.run_id == run)
        await f.wait(t.cohorts, cohort.id, lambda row: row.round >= 2)
        manifest = await saving.save(f.coordinator, place.directory / "backup")
        assert manifest.num_missing_blobs == 0
        assert (await f.wait_for_run(run)).status == "completed"
        whole = await f.published(run)
        evidence = f.coordinator.settings.evidence_path
    url = place.new_database()
    settings = Settings(
        home=place.directory / "second" / "home", database_url=url, evidence_dir=evidence, **place.settings
    )
    assert (await put_back(settings, place.directory / "backup")).num_blobs == manifest.num_blobs
    async with reopened(place.directory / "second", url, evidence_dir=evidence, **place.settings) as f:
        assert 2 < len(await f.published(run)) < len(whole)
        f.work()
        assert (await f.wait_for_run(run)).status == "completed"
        assert await f.published(run) == whole
    await assert_healthy(settings)


async def test_who_was_erased_does_not_come_back_with_a_backup_from_before(place: Place) -> None:
    url, backup = place.new_database(), place.directory / "backup"
    async with federation(place.directory, "a", "b", "c", url=url, **place.settings) as f:
        f.work()
        run = await f.create_run(stop={"rounds": 3})
        assert (await f.wait_for_run(run)).status == "completed"
        await saving.save(f.coordinator, backup)
        erasure = await f.erase("a")
        assert (await f.wait_for_erasure(erasure)).status == "completed"
        settings, leaver = f.coordinator.settings, f.clients["a"]
        tainted = {row.digest for row in await f.rows(t.checkpoints, t.checkpoints.c.superseded_by.is_not(None))}
        served = await f.heads(run)
    await put_back(settings, backup, force=True)

    coordinator = Coordinator(settings)
    f = Federation(coordinator, place.directory, f.id)
    own = await stored_blobs(f, t.blobs.c.client_id == leaver)
    tainted_blobs = await stored_blobs(f, t.blobs.c.digest.in_(tainted), t.blobs.c.origin == "job")
    assert tainted_blobs
    for blob in (*own, *tainted_blobs):
        with pytest.raises(Rejected, match="key"):
            await coordinator.sealer.data_key(blob)
    found = await examined(settings)
    assert "database-restored" in {one.name for one in found.left}
    await coordinator.close()

    async with reopened(place.directory, url, **place.settings) as f:
        assert "a" not in f.clients
        f.work()
        done = await f.wait(t.erasures, erasure, lambda row: row.status in ("completed", "requires_action", "failed"))
        assert done.status == "completed", done.reason
        assert (await f.wait_for_run(run)).status == "completed"
        assert await f.heads(run) == served
        assert not await stored_blobs(f, t.blobs.c.client_id == leaver)
    await assert_healthy(settings)


@pytest.mark.parametrize("topology", [{"kind": "flat"}, {"kind": "clusters", "num_clusters": 2}])
async def test_a_backup_from_before_several_erasures_forgets_them_all_again_each_time(
    topology: dict[str, Any], tmp_path: Path
) -> None:
    """A later erasure destroyed the keys of what the earlier ones had kept."""
    async with federation(tmp_path, "a", "b", "c", "d", "e") as f:
        f.work()
        run = await f.create_run(stop={"rounds": 2}, topology=topology)
        assert (await f.wait_for_run(run)).status == "completed"
        await saving.save(f.coordinator, tmp_path / "backup")
        erasures = []
        for name in ("a", "b", "c"):
            erasures.append(await f.erase(name))
            assert (await f.wait_for_erasure(erasures[-1])).status == "completed"
        settings = f.coordinator.settings
    for _ in range(2):
        await put_back(settings, tmp_path / "backup", force=True)
        async with reopened(tmp_path, None) as f:
            f.work()
            for erasure in erasures:
                done = await f.wait(
                    t.erasures, erasure, lambda row: row.status in ("completed", "requires_action", "failed")
                )
                assert done.status == "completed", done.reason
            assert (await f.wait_for_run(run)).status == "completed"
            served = {digest for digest in (await f.heads(run)).values() if digest is not None}
            assert served
            for blob in (await f.coordinator.storage.find(f.id, served)).values():
                assert digests.of_bytes(await f.coordinator.storage.whole(blob)) == blob.digest
        await assert_healthy(settings)


async def test_a_restore_overwrites_nothing_unless_forced_and_takes_no_changed_backup(tmp_path: Path) -> None:
    async with federation(tmp_path, "a") as f:
        settings = f.coordinator.settings
        await saving.save(f.coordinator, tmp_path / "backup")
        with pytest.raises(BackupUnusable, match="not empty"):
            await saving.save(f.coordinator, tmp_path / "backup")
    with pytest.raises(restoring.NotEmpty):
        await put_back(settings, tmp_path / "backup")
    elsewhere = Settings(home=tmp_path / "elsewhere", evidence_dir=settings.evidence_path)
    (blob,) = (tmp_path / "backup" / "blobs").glob("*/*")
    before = blob.read_bytes()
    for data in (before[:-1], before[:-1] + bytes([before[-1] ^ 1])):
        blob.write_bytes(data)
        with pytest.raises(BackupUnusable, match="changed"):
            await put_back(elsewhere, tmp_path / "backup")
    blob.unlink()
    with pytest.raises(BackupUnusable, match="missing"):
        await put_back(elsewhere, tmp_path / "backup")
    assert not (tmp_path / "elsewhere" / "lethe.db").exists()
    blob.write_bytes(before)
    await put_back(elsewhere, tmp_path / "backup")
    await assert_healthy(elsewhere)


async def test_no_backup_of_database_and_blobs_holds_a_key(tmp_path: Path) -> None:
    async with federation(tmp_path, "a", "b") as f:
        f.work()
        assert (await f.wait_for_run(await f.create_run(stop={"rounds": 2}))).status == "completed"
        await saving.save(f.coordinator, tmp_path / "backup")
        evidence = f.coordinator.settings.evidence_path
    store = DirectoryKeys(evidence / "keys")
    secrets = [store.find(name) for name in store.names()]
    secrets += [(evidence / "signing-key.pem").read_bytes()]
    files = [path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert len(secrets) > 3 and files
    for secret in secrets:
        assert secret is not None
        assert not any(secret in data or secret.hex().encode() in data for data in files)


@pytest.fixture
async def erased(tmp_path: Path) -> AsyncIterator[tuple[Federation, UUID]]:
    """With a copy of the keys in `tmp_path / "keys"` from before."""
    async with federation(tmp_path, "a", "b") as f:
        f.work()
        run = await f.create_run(stop={"rounds": 2})
        assert (await f.wait_for_run(run)).status == "completed"
        keys.save(f.coordinator.settings.evidence_path, tmp_path / "keys", datetime.now(UTC))
        leaver = f.clients["a"]
        erasure = await f.erase("a")
        assert (await f.wait_for_erasure(erasure)).status == "completed"
        yield f, leaver


async def test_a_new_copy_of_the_keys_replaces_the_one_before_and_destroys_it(
    erased: tuple[Federation, UUID], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, leaver = erased
    copy, evidence = tmp_path / "keys", f.coordinator.settings.evidence_path
    old = list(copy.rglob(f"client-{leaver}.0"))
    assert len(old) == 1
    (open_before,) = [path.open("rb") for path in old]  # what is left of it on the disk
    keys.save(evidence, copy, datetime.now(UTC))
    with open_before:
        assert open_before.read() == bytes(32)
    assert not list(copy.rglob(f"client-{leaver}.0"))
    assert len([path for path in copy.iterdir() if path.is_dir()]) == 1
    assert {path.name for path in copy.rglob("*.pem")} == {path.name for path in evidence.rglob("*.pem")}


async def test_a_copy_of_the_keys_that_is_older_than_an_erasure_is_not_put_back(
    erased: tuple[Federation, UUID], tmp_path: Path
) -> None:
    f, _ = erased
    evidence = f.coordinator.settings.evidence_path
    with pytest.raises(BackupUnusable, match="older than the last erasure"):
        keys.restore(tmp_path / "keys", evidence)
    keys.save(evidence, tmp_path / "keys", datetime.now(UTC))
    assert keys.restore(tmp_path / "keys", evidence) == 0
    (lost, *_) = (evidence / "keys").glob("federation-*")
    key = lost.read_bytes()
    lost.unlink()
    assert keys.restore(tmp_path / "keys", evidence) == 1
    assert lost.read_bytes() == key


async def test_an_evidence_directory_that_is_lost_comes_back_from_its_copy(
    erased: tuple[Federation, UUID], tmp_path: Path
) -> None:
    f, _ = erased
    settings = f.coordinator.settings
    keys.save(settings.evidence_path, tmp_path / "keys", datetime.now(UTC))
    elsewhere = settings.model_copy(update={"evidence_dir": tmp_path / "evidence-again"})
    keys.restore(tmp_path / "keys", elsewhere.evidence_path)
    await assert_healthy(elsewhere)


async def test_a_copy_of_the_keys_overwrites_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(BackupUnusable, match="not empty"):
        keys.save(tmp_path / "evidence", tmp_path / "other", datetime.now(UTC))
