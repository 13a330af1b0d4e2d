"""Homes as version 0.1 left them, before and after they are upgraded: what they hold, and what still lies there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import sqlalchemy as sa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from safetensors.numpy import save
from sqlalchemy.engine import make_url

from coordinator.blobs.postgres import CHUNK_BYTES
from coordinator.store.database import Database
from services.history.version_0_1 import SEGMENT_BYTES
from tests.golden.home_0001 import HERE
from tests.support.servers import postgres_binaries

WINDOW_BYTES = 64


def unpack(back_end: str, directory: Path, url: str | None) -> None:
    """`directory/home` as that release left it; its database at `url` if it is Postgres."""
    with tarfile.open(HERE / f"{back_end}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    if url is None:
        return
    place = make_url(url)
    command = [postgres_binaries() / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", place.host, "-p", place.port]
    command += ["-U", place.username, "-d", place.database, "-f", directory / "home/dump.sql"]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    (directory / "home/dump.sql").unlink()


def database_of(directory: Path, url: str | None) -> Database:
    return Database(url or f"sqlite:///{directory / 'home/lethe.db'}")


async def said(database: Database, text: str) -> list[dict[str, str]]:
    """Rows, whatever the schema; UUIDs as 32 digits on both back ends."""

    def plain(value: Any) -> str:
        return str(value).replace("-", "") if len(str(value)) == 36 else str(value)

    async with database.read() as connection:
        rows = (await connection.execute(sa.text(text))).mappings().all()
    return [{name: plain(value) for name, value in row.items()} for row in rows]


async def expected_origins(database: Database) -> Counter[tuple[str, ...]]:
    """Of a database before the upgrade: (digest, origin, origin id, client, cohort, epoch) of each row to come."""
    stored = {
        row["digest"]: row["uploaded_by"] for row in await said(database, "SELECT digest, uploaded_by FROM blobs")
    }
    specs = " ".join(row["spec"] for row in await said(database, "SELECT CAST(spec AS TEXT) AS spec FROM runs"))
    updates = {row["id"]: row for row in await said(database, "SELECT * FROM updates")}
    is_stored = {row["id"] for row in await said(database, "SELECT id FROM updates WHERE stored")}
    jobs = await said(database, "SELECT * FROM jobs")
    kept = await said(database, "SELECT * FROM kept_updates WHERE status <> 'dropped'")
    found = [
        (one["digest"], "task", one["task_id"], one["client_id"], one["cohort_id"], one["epoch"])
        for one in updates.values()
        if one["id"] in is_stored
    ]
    found += [(one["output"], "job", one["id"], "None", one["cohort_id"], one["epoch"]) for one in jobs]
    found += [
        (
            one["digest"],
            "copy",
            one["update_id"],
            one["client_id"],
            one["cohort_id"],
            updates[one["update_id"]]["epoch"],
        )
        for one in kept
    ]
    found = [row for row in found if row[0] in stored]
    found += [(digest, "operator", "None", "None", "None", "None") for digest in stored if digest in specs]
    for digest in set(stored) - {row[0] for row in found}:
        whose = "operator" if stored[digest] == "None" else "task"
        found.append((digest, whose, "None", stored[digest], "None", "None"))
    return Counter(found)


async def origins(database: Database) -> Counter[tuple[str, ...]]:
    columns = ("digest", "origin", "origin_id", "client_id", "cohort_id", "epoch")
    rows = await said(database, f"SELECT {', '.join(columns)} FROM blobs WHERE status = 'stored' AND data_key IS NULL")
    return Counter(tuple(row[name] for name in columns) for row in rows)


def contents(directory: Path) -> dict[str, bytes]:
    """By name: all blobs of the home as they lie there."""
    return {path.name: path.read_bytes() for path in (directory / "home/blobs").rglob("*") if path.is_file()}


async def move_to_postgres(directory: Path, database: Database) -> None:
    """Put the blobs of the home where that release kept them with LETHE_BLOBS=postgres, and beside them an upload that
    was never finished."""
    content = sa.text(
        "INSERT INTO blob_contents (owner, digest, sender, num_bytes, complete, modified_at) "
        "VALUES (:owner, :digest, :sender, :num_bytes, :complete, now()) RETURNING id"
    )
    chunk = sa.text("INSERT INTO blob_chunks (content_id, position, data) VALUES (:content_id, :position, :data)")
    paths = sorted(path for path in (directory / "home/blobs").rglob("*") if path.is_file())
    async with database.write() as connection:
        for path, is_whole in [*((path, True) for path in paths), (paths[0], False)]:
            data = path.read_bytes()
            stored = data if is_whole else data[:-1]
            row = {"owner": UUID(path.parent.name), "digest": f"sha256:{path.name}", "sender": "" if is_whole else "c1"}
            row |= {"num_bytes": len(stored), "complete": is_whole}
            content_id = (await connection.execute(content, row)).scalar_one()
            for start in range(0, len(stored), CHUNK_BYTES):
                piece = {"content_id": content_id, "position": start, "data": stored[start : start + CHUNK_BYTES]}
                await connection.execute(chunk, piece)
    shutil.rmtree(directory / "home/blobs")


async def contents_in_postgres(database: Database) -> dict[str, bytes]:
    """By name: all blobs as they lie in the database."""
    found: dict[str, bytes] = {}
    rows = sa.text(
        "SELECT c.name, p.data FROM blob_contents c JOIN blob_chunks p ON p.content_id = c.id ORDER BY c.id, p.position"
    )
    async with database.read() as connection:
        for name, data in await connection.execute(rows):
            found[name] = found.get(name, b"") + data
    return found


def windows_found(directory: Path, known: dict[str, bytes]) -> list[str]:
    """Where in the home any part of the known bytes lies."""
    paths = sorted(path for path in (directory / "home").rglob("*") if path.is_file())
    return where_found({str(path): path.read_bytes() for path in paths}, known)


def where_found(places: Mapping[str, bytes], known: dict[str, bytes]) -> list[str]:
    """The places where any part of the known bytes lies; parts that say nothing, like zeros, are not looked for."""
    parts = [
        data[start : start + WINDOW_BYTES]
        for data in known.values()
        for start in range(0, len(data) - WINDOW_BYTES + 1, WINDOW_BYTES)
    ]
    telling = {part for part in parts if len(set(part)) > WINDOW_BYTES // 4}
    assert len(telling) > len(known)
    return [place for place, data in places.items() for part in telling if part in data]


def seal_as_before(plain: bytes, key: bytes, context: bytes, dtype: str, compression: str) -> bytes:
    """A copy of an update in the form that version 0.1 stored."""
    salt, bound = os.urandom(32), f"{dtype}\x1f{compression}\x1f".encode() + context
    cipher = AESGCM(HKDF(SHA256(), 32, salt, b"lethe update history v1").derive(key))
    segments = [plain[start : start + SEGMENT_BYTES] for start in range(0, len(plain), SEGMENT_BYTES)]
    sealed = salt
    for number, segment in enumerate(segments):
        flag = b"\x01" if number == len(segments) - 1 else b"\x00"
        sealed += cipher.encrypt(number.to_bytes(11) + flag, segment, bound)
    whole = save({"sealed": np.frombuffer(sealed, np.uint8)})
    header = whole[: len(whole) - len(sealed)]
    padded = (120).to_bytes(8, "little") + header[8:].rstrip().ljust(120)
    return padded + sealed


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
