"""Places for unsealed updates while a kernel reads them, and for what it makes of them. Each directory is locked by its
user, so that what a killed process left behind is told apart from what is in use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from services.core.private_files import make_directory


class Scratch:
    """Several processes may share the root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own = contextlib.ExitStack()
        self._directory: Path | None = None

    def close(self) -> None:
        self._own.close()
        self._directory = None

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """Where to write a file that is moved on or gone afterwards."""
        if self._directory is None:
            self._directory = self._own.enter_context(self.directory())
        path = self._directory / uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        make_directory(self._root)
        with tempfile.TemporaryDirectory(dir=self._root, ignore_cleanup_errors=True) as name, _locked(Path(name)):
            yield Path(name)

    def left_over(self) -> set[Path]:
        """What nobody uses any more."""
        found = set()
        for path in self._root.iterdir() if self._root.exists() else ():
            with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(path):
                found.add(path)
        return found

    def sweep(self) -> int:
        """Remove what nobody uses any more; returns how many directories."""
        num_swept = 0
        for path in self._root.iterdir() if self._root.exists() else ():
            with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(path):
                shutil.rmtree(path, ignore_errors=True)
                num_swept += 1
        return num_swept


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises BlockingIOError when somebody else has it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
