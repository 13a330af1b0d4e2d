"""Where coordinators of this home serve: a file for each, locked while it does, so that whoever looks after the
installation finds them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from services.core import private_files

_DIRECTORY: Final = "serving"


@contextlib.contextmanager
def announced(home: Path, url: str) -> Iterator[None]:
    """Say where this process serves as long as it does."""
    directory = home / _DIRECTORY
    private_files.make_directory(directory)
    for path in _announced(directory, is_alive=False):
        path.unlink(missing_ok=True)
    path = directory / f"{os.getpid()}-{os.urandom(4).hex()}"
    with private_files.create(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(url.encode())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def addresses(home: Path) -> list[str]:
    """The addresses of those that serve now."""
    found = [path.read_text("utf-8") for path in _announced(home / _DIRECTORY, is_alive=True)]
    return sorted({url for url in found if url})


def _announced(directory: Path, *, is_alive: bool) -> list[Path]:
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_locked = False
            except BlockingIOError:
                is_locked = True
            if is_locked == is_alive:
                found.append(path)
    return found
