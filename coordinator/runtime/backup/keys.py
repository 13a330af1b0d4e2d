"""`lethe backup --keys DIR`: a copy of the directory of evidence, kept apart from all other backups; and the way back.

A key in a copy that is older than an erasure would make old backups readable again. So there is one copy, in a
directory of its own, and the next takes its place at once: the manifest names the part that counts, and all others are
overwritten and removed.
"""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from coordinator.keys.directory import DirectoryKeys
from coordinator.keys.port import KeyName, is_of_client, is_of_cohort
from coordinator.runtime.backup.manifest import (
    MANIFEST,
    BackupUnusable,
    FileList,
    Manifest,
    instant,
    read,
    restore_file,
    verified,
    write_durably,
)
from coordinator.tombstones.files import FileTombstoneLog
from coordinator.tombstones.port import Contents, Tombstone, erased_clients, newest_epochs
from services.core import private_files

LOG: Final = "tombstones.jsonl"
ATTEMPTS: Final = 10
_PART: Final = "evidence-"


def save(evidence: Path, root: Path, now: datetime) -> Manifest:
    """Raises `BackupUnusable` and OSError; `LogCorrupt` when the log is damaged."""
    if root.exists() and any(root.iterdir()):
        read_any(root)  # refuse to overwrite what is no copy of keys
    private_files.make_directory(root)
    log = FileTombstoneLog(evidence / LOG)
    for _ in range(ATTEMPTS):
        before = log.contents()
        part = root / f"{_PART}{os.urandom(8).hex()}"
        files = FileList(part)
        private_files.make_directory(part)
        names = _files(evidence)
        is_whole = all(_copy_to_list(files, evidence / name, name) for name in names)
        # A key that was destroyed while the copy was made must not be in it.
        if is_whole and names == _files(evidence) and log.contents().stamp == before.stamp:
            manifest = Manifest(
                holds="evidence",
                lethe=version("lethe"),
                created_at=instant(now),
                list_digest=files.close(),
                num_files=len(files.lines),
                num_bytes=files.num_bytes,
                num_tombstones=len(before.entries),
            )
            write_durably(part / MANIFEST, manifest.model_dump_json(indent=2).encode())
            write_durably(root / MANIFEST, f'{{"part":"{part.name}"}}\n'.encode())
            _destroy_others(root, part.name)
            return manifest
        _shred(part)
    raise BackupUnusable("the directory of evidence kept changing: try again when less is going on")


def restore(root: Path, evidence: Path) -> int:
    """Returns how many files were put back. An empty directory gets all of them. Another keeps what it has, and gets
    what it lacks only from a copy that is not older than its last erasure; and none of those keys that the erasures in
    its log have destroyed, or will."""
    part = read_any(root)
    names = verified(part, read(part, "evidence"))
    there, found = FileTombstoneLog(evidence / LOG).contents(), FileTombstoneLog(part / LOG).contents()
    is_empty = not evidence.is_dir() or not _files(evidence)
    if not is_empty:
        _refuse_older(there, found)
        names = [name for name in names if not (evidence / name).exists() and not _is_doomed(name, found.entries)]
        if len(there.entries) < len(found.entries):
            names.append(LOG)
    for name in dict.fromkeys(names):
        restore_file(part / name, evidence / name)
    return len(dict.fromkeys(names))


def read_any(root: Path) -> Path:
    """The part of the copy that counts."""
    import json

    try:
        name = str(json.loads((root / MANIFEST).read_bytes())["part"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        raise BackupUnusable(f"{root} is not empty and holds no copy of a directory of evidence") from None
    if not name.startswith(_PART) or "/" in name:
        raise BackupUnusable(f"the manifest of {root} names {name}")
    return root / name


def _refuse_older(there: Contents, found: Contents) -> None:
    fewest = min(len(there.entries), len(found.entries))
    if there.digests[fewest] != found.digests[fewest]:
        raise BackupUnusable("the copy is of another installation: its log of tombstones is another one")
    if len(found.entries) < len(there.entries):
        raise BackupUnusable(
            f"the copy is older than the last erasure here ({len(found.entries)} of {len(there.entries)} tombstones): "
            "keys that were destroyed since would come back"
        )


def _is_doomed(name: str, entries: tuple[Tombstone, ...]) -> bool:
    """A key that one of these erasures destroys."""
    key: KeyName = Path(name).name
    if any(is_of_client(key, client_id) for client_id in erased_clients(entries)):
        return True
    for (_, cohort_id), epoch in newest_epochs(entries).items():
        if is_of_cohort(key, cohort_id):
            of = key.rpartition(".")[2]
            newest = next(str(e.request_id) for e in reversed(entries) if cohort_id in {c.cohort_id for c in e.cohorts})
            return int(of) < epoch if of.isdecimal() else of != newest
    return False


def _files(evidence: Path) -> list[str]:
    """All files of the directory but locks and what somebody is just writing."""
    found = [path for path in evidence.rglob("*") if path.is_file() and not path.name.startswith(".")]
    keys = DirectoryKeys(evidence / "keys").names()
    return sorted(str(path.relative_to(evidence)) for path in found if path.parent.name != "keys" or path.name in keys)


def _copy_to_list(files: FileList, path: Path, name: str) -> bool:
    try:
        with path.open("rb") as file:
            files.take(file, name)
    except FileNotFoundError:
        return False
    return True


def _destroy_others(root: Path, name: str) -> None:
    for path in root.iterdir():
        if path.is_dir() and path.name.startswith(_PART) and path.name != name:
            _shred(path)


def _shred(directory: Path) -> None:
    """Overwrite all files before they are removed."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("r+b", buffering=0) as file:
                file.write(bytes(path.stat().st_size))
                os.fsync(file.fileno())
    shutil.rmtree(directory)
    private_files.sync(directory.parent)
