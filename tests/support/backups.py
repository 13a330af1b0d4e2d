"""Backups as an operator takes them, of database and blobs but not of the keys, and installations restored from one."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa
from sqlalchemy import make_url

from coordinator.blobs.postgres import chunks, contents
from coordinator.keys.directory import DirectoryKeys
from coordinator.store import tables as t
from coordinator.store.database import Database
from tests.support.searching import Row, Store
from tests.support.servers import PostgresServer, postgres_binaries


@dataclass(frozen=True)
class Installation:
    """Where everything of a coordinator lies."""

    directory: Path
    server: PostgresServer | None = None
    """None: on SQLite."""
    url: str | None = None
    redis_url: str | None = None
    blobs: str = "file"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def evidence(self) -> Path:
        return self.directory / "evidence"

    @property
    def settings(self) -> dict[str, Any]:
        return {"evidence_dir": self.evidence, "redis_url": self.redis_url, "blobs": self.blobs}

    def keys(self) -> dict[str, bytes]:
        """All that exist now."""
        store = DirectoryKeys(self.evidence / "keys")
        return {name: key for name in store.names() if (key := store.find(name)) is not None}

    def back_up(self, directory: Path, *, with_data_directory: bool = False) -> Backup:
        """While it runs. The keys stay where they are."""
        directory.mkdir(parents=True)
        if self.server is None or self.url is None:
            with (
                contextlib.closing(sqlite3.connect(self.home / "lethe.db")) as source,
                contextlib.closing(sqlite3.connect(directory / "lethe.db")) as target,
            ):
                source.backup(target)
            for path in self.home.glob("lethe.db*"):
                shutil.copy(path, directory / f"as-it-lies-{path.name}")
        else:
            _client("pg_dump", self.url, "-f", str(directory / "dump.sql"))
            self.server.execute("CHECKPOINT")
            if with_data_directory and (data := self.server.data_directory) is not None:
                shutil.copytree(data, directory / "data", ignore_dangling_symlinks=True)
        (directory / "blobs").mkdir()
        if (self.home / "blobs").exists():
            shutil.copytree(self.home / "blobs", directory / "blobs", dirs_exist_ok=True)
        return Backup(directory, self)

    def copy_of_redis(self) -> bytes:
        """Everything that it holds."""
        if self.redis_url is None:
            return b""
        with redis.Redis.from_url(self.redis_url) as client:
            client.config_set("rdbcompression", "no")
            return b"".join([name + (client.dump(name) or b"") for name in client.scan_iter()])


@dataclass(frozen=True)
class Backup:
    directory: Path
    of: Installation

    @property
    def name(self) -> str:
        return self.directory.name

    def restored(self, directory: Path) -> Installation:
        """Database and blobs of then, evidence and keys of now."""
        made = replace(self.of, directory=directory)
        made.home.mkdir(parents=True)
        shutil.copytree(self.directory / "blobs", made.home / "blobs")
        shutil.copytree(self.of.evidence, made.evidence)
        if self.of.server is None:
            shutil.copy(self.directory / "lethe.db", made.home / "lethe.db")
            return made
        return replace(made, url=self._loaded(self.of.server))

    def put_back(self) -> Installation:
        """In place of what is there now, which must not be running; evidence and keys stay as they are."""
        for path in self.of.home.glob("lethe.db*"):
            path.unlink()
        shutil.rmtree(self.of.home / "blobs", ignore_errors=True)
        shutil.copytree(self.directory / "blobs", self.of.home / "blobs")
        if self.of.server is None:
            shutil.copy(self.directory / "lethe.db", self.of.home / "lethe.db")
            return self.of
        return replace(self.of, url=self._loaded(self.of.server))

    def _loaded(self, server: PostgresServer) -> str:
        url = server.new_database()
        _client("psql", url, "-q", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", "-f", str(self.directory / "dump.sql"))
        return url


async def store_of(place: Installation) -> Store:
    """What the rows and objects of an installation are."""
    found = Store()
    database = Database(place.url or f"sqlite:///{(place.home / 'lethe.db').absolute()}")
    try:
        async with database.read() as connection:
            b = t.blobs.c
            for row in await connection.execute(sa.select(b.id, b.origin, b.digest, b.data_key)):
                found.rows.append(Row(row.id, row.origin, row.digest, row.data_key))
            if place.blobs == "postgres":
                lying = sa.select(contents.c.name, chunks.c.data).join(chunks, chunks.c.content_id == contents.c.id)
                for name, data in await connection.execute(lying.order_by(contents.c.id, chunks.c.position)):
                    found.objects[name] = found.objects.get(name, b"") + data
    finally:
        await database.close()
    found.add_files(place.home / "blobs")
    return found


def _client(program: str, url: str, *arguments: str) -> None:
    address = make_url(url)
    where = ["-h", str(address.host), "-p", str(address.port), "-U", str(address.username), "-d", str(address.database)]
    done = subprocess.run([str(postgres_binaries() / program), *where, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
