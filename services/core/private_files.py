"""Files and directories that only their owner can use, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def make_directory(path: Path) -> None:
    """Make a directory, and its missing parents; one that exists is left as it is."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=DIRECTORY_MODE)
        path.chmod(DIRECTORY_MODE)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the entries of a directory, survive a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_private(path: Path) -> FileIO:
    """A file to write, empty, without a buffer."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    return FileIO(fd, "wb")


def create(path: Path) -> BinaryIO:
    """A file to write, empty."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    return os.fdopen(fd, "wb")


def tighten_directory(path: Path) -> bool:
    """The directory alone; what is in it is not looked at. False: it is somebody else's."""
    with contextlib.suppress(PermissionError):
        path.chmod(DIRECTORY_MODE)
    return not path.stat().st_mode & 0o077


def tighten(*paths: Path) -> list[Path]:
    """Take everybody else's rights from these files and directories and from all that is in them; returns those that
    belong to somebody else and were left as they are. What does not exist is passed over."""
    return [path for root in paths for path in _tightened(root) if not _is_private(path)]


def exposed(*paths: Path) -> list[Path]:
    """The files and directories among these, and all in them, that others than their owner have rights on."""
    return [path for root in paths for path in _all_of(root) if not _is_private(path)]


def _tightened(root: Path) -> Iterator[Path]:
    """What was not private, each after an attempt to make it so."""
    for path in _all_of(root):
        yield from _attempted(path)


def _all_of(root: Path) -> Iterator[Path]:
    yield root
    if root.is_dir():
        for directory, names, files in os.walk(root):
            for name in (*names, *files):
                yield Path(directory, name)


def _attempted(path: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        if not _is_private(path):
            with contextlib.suppress(PermissionError):
                path.chmod(DIRECTORY_MODE if path.is_dir() else FILE_MODE)
            yield path


def _is_private(path: Path) -> bool:
    """Whether a file or directory is private; whatever else there may be (a link, a socket) is none of ours."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or not mode & 0o077
