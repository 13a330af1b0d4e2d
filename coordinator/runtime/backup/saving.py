"""`lethe backup DIR`: the database at one instant, and the bytes of every blob that it says is stored.

Coordinators go on meanwhile, and give blobs up that the backup needs. So their files are held by a second link as soon
as the instant is fixed; where one has gone already, another instant is taken, for which most are held by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from coordinator.blobs.port import BlobStore, Missing
from coordinator.runtime.backup.manifest import MANIFEST, BackupUnusable, FileList, Manifest, instant, write_durably
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.scratch import Scratch
from coordinator.store import blobs as rows
from coordinator.store.database import Database
from coordinator.store.snapshots import Snapshot, StoredName, snapshot
from services.core import private_files

ATTEMPTS: Final = 20
HELD: Final = ".held"
"""Beside the blobs, so that a second link can lie there; a store passes over it."""
TELL_EVERY: Final = 1000
DATABASES: Final = {True: "database.sqlite3", False: "database.dump"}
"""The name of the database's file in a backup, by whether it is SQLite."""
Say = Callable[[str], None]


async def save(coordinator: Coordinator, root: Path, say: Say = lambda text: None) -> Manifest:
    """Raises `BackupUnusable`, `ToolFailed`, OSError, `Unavailable`."""
    if root.exists() and any(root.iterdir()):
        raise BackupUnusable(f"{root} is not empty: every backup has a directory of its own")
    private_files.make_directory(root)
    settings, database = coordinator.settings, coordinator.database
    async with database.read() as connection:
        now = await database.now(connection)
    is_apart = settings.blobs == "file"
    with contextlib.ExitStack() as stack:
        held = HeldFiles(coordinator.blobs, database)
        if is_apart:
            place = Scratch(settings.blob_path / HELD)
            place.sweep()  # of a backup that was killed
            held.directory = stack.enter_context(place.directory())
        for _ in range(ATTEMPTS):
            async with snapshot(database) as found:
                if is_apart and not await held.hold(found.stored):
                    continue
                say("copying the database")
                return await _write(found, held, root, now, is_sqlite=database.is_sqlite, is_apart=is_apart, say=say)
    raise BackupUnusable("blobs were given up faster than they could be held: try again when less is going on")


class HeldFiles:
    """Files of blobs that stay until they are copied, whatever becomes of the blobs."""

    def __init__(self, store: BlobStore, database: Database) -> None:
        self._store, self._database = store, database
        self.directory = Path()
        self.missing: set[StoredName] = set()
        """Stored, as the database says, and nowhere to be found."""

    def path(self, one: StoredName) -> Path:
        return self.directory / f"{one.owner}.{one.name}"

    async def hold(self, stored: Sequence[StoredName]) -> bool:
        """False: some were given up before they could be held."""
        is_whole, self.missing = True, set()
        for one in stored:
            if self.path(one).exists():
                continue
            try:
                async with self._store.local(one.owner, [one.name]) as paths:
                    await asyncio.to_thread(_link, paths[one.name], self.path(one))
            except (Missing, FileNotFoundError):
                if await self._is_stored(one):
                    self.missing.add(one)
                else:
                    is_whole = False
        return is_whole

    async def _is_stored(self, one: StoredName) -> bool:
        async with self._database.read() as connection:
            return any(blob.status == "stored" for blob in await rows.by_id(connection, [one.blob_id]))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


async def _write(
    found: Snapshot, held: HeldFiles, root: Path, now: datetime, *, is_sqlite: bool, is_apart: bool, say: Say
) -> Manifest:
    files, file = FileList(root), DATABASES[is_sqlite]
    private_files.create(root / file).close()
    await found.copy_to(root / file)
    await asyncio.to_thread(files.note, file)
    for number, one in enumerate(found.stored if is_apart else (), 1):
        if one not in held.missing:
            await asyncio.to_thread(_copy_to_list, files, held.path(one), f"blobs/{one.owner}/{one.name}")
        if number % TELL_EVERY == 0:
            say(f"{number} of {len(found.stored)} blobs copied")
    manifest = Manifest(
        holds="database-and-blobs",
        lethe=version("lethe"),
        created_at=instant(now),
        list_digest=files.close(),
        num_files=len(files.lines),
        num_bytes=files.num_bytes,
        database="sqlite" if is_sqlite else "postgres",
        blobs="file" if is_apart else "postgres",
        schema_revision=found.revision,
        num_blobs=len(found.stored),
        num_missing_blobs=len(held.missing),
    )
    await asyncio.to_thread(write_durably, root / MANIFEST, manifest.model_dump_json(indent=2).encode())
    return manifest


def _copy_to_list(files: FileList, path: Path, name: str) -> None:
    with path.open("rb") as file:
        files.take(file, name)
