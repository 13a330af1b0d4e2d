"""What a backup says of itself. It is written last: a directory without it is no backup."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from services.core import private_files

MANIFEST: Final = "manifest.json"
LIST: Final = "files.sha256"
PIECE_BYTES: Final = 1 << 20


class BackupUnusable(Exception):
    """Says what is wrong with it, or why it cannot be put back here."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Manifest(_Strict):
    """`list_digest`: of the file that names all others with their digests."""

    format: Literal[1] = 1
    holds: Literal["database-and-blobs", "evidence"]
    lethe: str
    created_at: str
    list_digest: str
    num_files: int
    num_bytes: int
    database: Literal["sqlite", "postgres"] | None = None
    blobs: Literal["file", "postgres"] | None = None
    schema_revision: str | None = None
    num_blobs: int | None = None
    num_missing_blobs: int | None = None
    num_tombstones: int | None = None


class FileList:
    """The files of a backup in the making, with their digests."""

    def __init__(self, root: Path) -> None:
        self.root, self.num_bytes = root, 0
        self.lines: list[str] = []

    def take(self, source: BinaryIO, name: str) -> None:
        """Copy a file to that place, durably."""
        path = self.root / name
        private_files.make_directory(path.parent)
        found = hashlib.sha256()
        with private_files.create(path) as target:
            for piece in pieces(source):
                found.update(piece)
                target.write(piece)
                self.num_bytes += len(piece)
            target.flush()
            os.fsync(target.fileno())
        self.lines.append(f"{found.hexdigest()}  {name}\n")

    def note(self, name: str) -> None:
        """A file that is there already."""
        with (self.root / name).open("rb") as file:
            os.fsync(file.fileno())
            found = hashlib.sha256()
            for piece in pieces(file):
                found.update(piece)
                self.num_bytes += len(piece)
        self.lines.append(f"{found.hexdigest()}  {name}\n")

    def close(self) -> str:
        """Write the list; returns its digest."""
        data = "".join(self.lines).encode()
        write_durably(self.root / LIST, data)
        return f"sha256:{hashlib.sha256(data).hexdigest()}"


def read(root: Path, holds: str) -> Manifest:
    try:
        manifest = Manifest.model_validate_json((root / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BackupUnusable(f"{root} holds no backup, or one that was never finished: it has no {MANIFEST}") from None
    except ValidationError as error:
        raise BackupUnusable(f"the manifest of {root} cannot be read: {error.errors()[0]['msg']}") from error
    if manifest.holds != holds:
        raise BackupUnusable(f"{root} is a backup of {manifest.holds}, not of {holds}")
    return manifest


def verified(root: Path, manifest: Manifest, say: Iterable[None] = ()) -> list[str]:
    """The names of all files, after each was read and compared."""
    data = (root / LIST).read_bytes()
    if manifest.list_digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
        raise BackupUnusable(f"the list of files of {root} was changed after the backup was made")
    names = []
    for line in data.decode().splitlines():
        wanted, _, name = line.partition("  ")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BackupUnusable(f"the list of files of {root} names {name}")
        try:
            with (root / name).open("rb") as file:
                found = hashlib.sha256()
                for piece in pieces(file):
                    found.update(piece)
        except FileNotFoundError:
            raise BackupUnusable(f"{name} is missing in the backup {root}") from None
        if found.hexdigest() != wanted:
            raise BackupUnusable(f"{name} of the backup {root} was changed after it was made")
        names.append(name)
    return names


def write_durably(path: Path, data: bytes) -> None:
    """All or nothing."""
    part = path.with_name(f".{path.name}-{os.getpid()}")
    with private_files.create(part) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    private_files.sync(path.parent)


def restore_file(source: Path, target: Path, instead_of: Sequence[Path] = ()) -> None:
    """Copy a file of a backup to its place, durably; what it replaces beside the target is removed just before."""
    private_files.make_directory(target.parent)
    part = target.with_name(f".{target.name}-restored")
    with source.open("rb") as found, private_files.create(part) as file:
        shutil.copyfileobj(found, file, PIECE_BYTES)
        file.flush()
        os.fsync(file.fileno())
    for path in instead_of:
        path.unlink(missing_ok=True)
    part.replace(target)
    private_files.sync(target.parent)


def pieces(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(PIECE_BYTES):
        yield data


def instant(now: datetime) -> str:
    return now.isoformat(timespec="seconds")
