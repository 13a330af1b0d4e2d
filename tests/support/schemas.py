"""Databases with the newest schema, without migrating each one: a new SQLite file is a copy of one that was migrated
once in this process."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from sqlalchemy import make_url

from coordinator.store import schema
from coordinator.store.database import Database


async def migrate(url: str) -> None:
    database = Database(url)
    try:
        await schema.upgrade(database)
    finally:
        await database.close()


async def make_ready(url: str) -> None:
    """Bring a database up to date; a SQLite file that is not there yet is copied."""
    address = make_url(url)
    file = Path(address.database or "")
    if address.get_backend_name() != "sqlite" or file.exists():
        await migrate(url)
        return
    if not (migrated := _directory() / "migrated.db").exists():
        await migrate(f"sqlite:///{migrated}")
    shutil.copy(migrated, file)


@functools.cache
def _directory() -> Path:
    made = Path(tempfile.mkdtemp(prefix="lethe-schema-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
