"""The keys that clients' kept updates are sealed with: a file of 32 random bytes per client, outside the database, the
blobs and the backups of both. Destroying a client's key makes every copy of what it sealed unreadable.
Methods block on the disk: call them from a thread.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from uuid import UUID

from services.core.private_files import make_directory
from services.history.sealing import KEY_BYTES


class SealingKeys:
    """Several processes may share the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, client_id: UUID) -> bytes | None:
        try:
            return self._path(client_id).read_bytes()
        except FileNotFoundError:
            return None

    def find_or_make(self, client_id: UUID) -> bytes:
        """Of several that make one at once, one does; it is durable before anything is sealed with it."""
        if key := self.find(client_id):
            return key
        make_directory(self._directory)
        with tempfile.NamedTemporaryFile(dir=self._directory, prefix=".new-") as file:  # mode 0600
            file.write(os.urandom(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(file.name, self._path(client_id))
        self._sync()
        return self._path(client_id).read_bytes()

    def destroy(self, client_id: UUID) -> None:
        """Overwritten, then removed; nothing happens when there is none."""
        try:
            with self._path(client_id).open("r+b", buffering=0) as file:
                file.write(bytes(KEY_BYTES))
                os.fsync(file.fileno())
        except FileNotFoundError:
            return
        self._path(client_id).unlink(missing_ok=True)
        self._sync()

    def owners(self) -> set[UUID]:
        """The clients that have one."""
        if not self._directory.exists():
            return set()
        return {UUID(path.name) for path in self._directory.iterdir() if not path.name.startswith(".")}

    def _path(self, client_id: UUID) -> Path:
        return self._directory / str(client_id)

    def _sync(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
