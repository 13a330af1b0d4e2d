"""`lethe restore DIR`: blobs first, then the database, so that no row is without its bytes. The directory of evidence
is not touched: what its log of tombstones remembers is fenced again when a coordinator starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import migrations
from coordinator.blobs.port import BlobStore
from coordinator.runtime.backup.manifest import PIECE_BYTES, BackupUnusable, Manifest, read, restore_file, verified
from coordinator.runtime.backup.saving import DATABASES, TELL_EVERY, Say
from coordinator.runtime.coordinator import Coordinator, database_files
from coordinator.runtime.orphans import remove_orphans
from coordinator.runtime.settings import Settings
from coordinator.store.snapshots import has_tables, put_back


class NotEmpty(Exception):
    """There is an installation that would be overwritten."""


async def restore(coordinator: Coordinator, root: Path, *, force: bool, say: Say = lambda text: None) -> Manifest:
    """Raises `BackupUnusable` and `NotEmpty` before anything is changed; `ToolFailed`, OSError."""
    manifest = read(root, "database-and-blobs")
    _refuse_another_kind(manifest, coordinator.settings)
    if not force and (place := await _used(coordinator)):
        raise NotEmpty(f"{place} holds an installation already")
    say("comparing the backup with its manifest")
    names = await asyncio.to_thread(verified, root, manifest)
    await _put_blobs(coordinator.blobs, root, [name for name in names if name.startswith("blobs/")], say)
    say("putting the database back")
    dump = root / DATABASES[coordinator.settings.is_embedded]
    if coordinator.settings.is_embedded:
        await asyncio.to_thread(_replace_files, database_files(coordinator.settings), dump)
    else:
        await put_back(coordinator.database, dump)
    if force and manifest.schema_revision == migrations.NEWEST:
        # Those of the installation that was there.
        await remove_orphans(coordinator.database, coordinator.blobs, also_of_strangers=True)
    return manifest


def _refuse_another_kind(manifest: Manifest, settings: Settings) -> None:
    here = ("sqlite" if settings.is_embedded else "postgres", settings.blobs)
    if (manifest.database, manifest.blobs) != here:
        found = f"its database is {manifest.database} with blobs in {manifest.blobs}"
        raise BackupUnusable(f"{found}, and the settings here say {here[0]} with blobs in {here[1]}")
    if manifest.schema_revision not in migrations.REVISIONS:
        raise BackupUnusable(f"its schema is {manifest.schema_revision}, which this release does not know")


async def _used(coordinator: Coordinator) -> str | None:
    settings = coordinator.settings
    if settings.is_embedded and (file := database_files(settings)[0]).exists():
        return str(file)
    if not settings.is_embedded and await has_tables(coordinator.database):
        return "the database"
    if settings.blobs == "file":
        async for one in coordinator.blobs.list():
            return f"{settings.blob_path} ({one.name})"
    return None


async def _put_blobs(store: BlobStore, root: Path, names: Sequence[str], say: Say) -> None:
    for number, place in enumerate(names, 1):
        _, owner, name = place.split("/")
        with (root / place).open("rb") as file:
            await _put(store, UUID(owner), name, file)
        if number % TELL_EVERY == 0:
            say(f"{number} of {len(names)} blobs put back")


async def _put(store: BlobStore, owner: UUID, name: str, file: BinaryIO) -> None:
    await store.delete(owner, name)
    at = 0
    while data := await asyncio.to_thread(file.read, PIECE_BYTES):
        at = await store.append(owner, name, at, len(data), data.__bytes__)
    if at:
        await store.sync(owner, name)


def _replace_files(files: Sequence[Path], source: Path) -> None:
    """SQLite: a coordinator that has the file open goes on with the old one until it notices."""
    target, *beside = files
    restore_file(source, target, instead_of=beside)
