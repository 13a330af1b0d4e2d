"""The files beside certificates, in the directory of evidence: lists of artefacts, and openings of pseudonyms. Readable
by their owner alone, durable, all or nothing. Methods block on the disk: call them from a thread.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from services.audit import opening as openings
from services.audit.artefact_list import Artefact, ListWriter
from services.audit.opening import Opening, OpeningInvalid
from services.audit.predicate import SALT_BYTES, ArtefactKind, Artefacts
from services.core.private_files import make_directory, sync

ABANDONED_AFTER: Final = timedelta(days=1)
_NEW: Final = ".new-"


class DraftList:
    """A list of artefacts in the making. Closed without having been published, it leaves nothing."""

    def __init__(self, directory: Path) -> None:
        fd, name = tempfile.mkstemp(dir=directory, prefix=_NEW)  # mode 0600
        self._path, self._file = Path(name), os.fdopen(fd, "wb")
        self._writer = ListWriter(self._file, lambda: os.urandom(SALT_BYTES))

    def write(self, artefacts: Iterable[Artefact]) -> None:
        self._writer.write(artefacts)

    def artefacts(self, planned: Mapping[ArtefactKind, int]) -> Artefacts:
        return self._writer.artefacts(planned)

    def publish(self, path: Path) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.replace(path)
        sync(path.parent)

    def close(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class CertificateFiles:
    """Several processes may share the directory."""

    def __init__(self, directory: Path) -> None:
        self._lists, self._openings = directory / "certificates", directory / "openings"

    def list_path(self, request_id: UUID, root: str) -> Path:
        """The root is in its name: whoever signs the same request at the same moment, or again after the database was
        restored, has another list, and each certificate keeps its own."""
        return self._lists / f"{request_id}.{root.removeprefix('sha256:')[:16]}.list.jsonl"

    def prepare(self, now: datetime) -> None:
        """Make the directory, and remove drafts of processes that died."""
        make_directory(self._lists)
        for draft in self._lists.glob(f"{_NEW}*"):
            with contextlib.suppress(FileNotFoundError):  # a process that was killed left it
                if draft.stat().st_mtime < (now - ABANDONED_AFTER).timestamp():
                    draft.unlink()

    def new_list(self) -> DraftList:
        """Quick, and to be called where it is closed: a thread whose caller is gone would leave the file open."""
        return DraftList(self._lists)

    def opening_path(self, request_id: UUID) -> Path:
        return self._openings / f"{request_id}.json"

    def keep_opening(self, wanted: Opening) -> Opening:
        """Write the opening of a request; returns the one that counts. Where the request has one already, its salt
        stays: it also opens the certificate that was issued before the database was restored."""
        make_directory(self._openings)
        path = self.opening_path(wanted.request)
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                _write(path, openings.to_bytes(wanted), replace=False)
        known = _fitting(path, wanted)
        clients = {*wanted.clients, *(known.clients if known is not None else ())}
        kept = (known or wanted).model_copy(update={"clients": tuple(sorted(clients))})
        if kept != known:
            _write(path, openings.to_bytes(kept), replace=True)
        return kept


def _fitting(path: Path, wanted: Opening) -> Opening | None:
    """None: it is damaged, or that of another request, and opens nothing."""
    try:
        known = openings.read(path.read_bytes())
    except OpeningInvalid:
        return None
    return known if (known.request, known.federation) == (wanted.request, wanted.federation) else None


def _write(path: Path, data: bytes, *, replace: bool) -> None:
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=_NEW)  # mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            Path(name).replace(path)
        else:
            path.hardlink_to(name)
    finally:
        Path(name).unlink(missing_ok=True)
    sync(path.parent)
