"""The ledger: which samples this client leaves out for good, on the data holder's own disk.

One line of JSON per erasure, appended and flushed to the disk before anything is acknowledged. A last line without its
line feed was cut off while it was written: nobody was told that it is there, so it is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from services.core.private_files import make_directory
from services.wire.message import Id, Message
from services.wire.v1.exclusions import ExcludedSamples, SampleNumber


class LedgerUnusable(Exception):
    """The ledger cannot be read or written; without it no sample may be trained on."""


class Entry(Message):
    erasure_id: Id
    samples: list[SampleNumber]


class Ledger:
    """Blocks on the disk: call it from a thread. Raises LedgerUnusable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[tuple[str, tuple[int, ...]]] = set()
        for number, line in enumerate(_whole_lines(path), start=1):
            try:
                self._note(Entry.model_validate_json(line))
            except ValidationError:
                raise LedgerUnusable(f"line {number} of {path} is damaged: restore the file from a copy") from None

    @property
    def samples(self) -> frozenset[int]:
        """Everything that is left out."""
        return frozenset(row for _, samples in self._known for row in samples)

    def add(self, stated: Iterable[ExcludedSamples]) -> None:
        """Write down what is not there yet; it is on the disk when this returns."""
        entries = [Entry(erasure_id=one.erasure_id, samples=sorted(one.samples)) for one in stated]
        new = [entry for entry in entries if _key(entry) not in self._known]
        if not new:
            return
        try:
            _append(self._path, b"".join(entry.model_dump_json().encode() + b"\n" for entry in new))
        except OSError as error:
            raise LedgerUnusable(f"cannot write the ledger {self._path}: {error.strerror}") from error
        for entry in new:
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        self._known.add(_key(entry))


def _key(entry: Entry) -> tuple[str, tuple[int, ...]]:
    return str(entry.erasure_id), tuple(entry.samples)


def _whole_lines(path: Path) -> list[bytes]:
    """Cuts off what follows the last line feed, so that the next line starts on its own."""
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LedgerUnusable(f"cannot read the ledger {path}: {error.strerror}") from error
    return whole.splitlines()


def _append(path: Path, data: bytes) -> None:
    make_directory(path.parent)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        try:
            written = os.write(fd, data)
            if written < len(data):
                raise OSError(0, "the disk took only a part of it")
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)  # half a line would merge with the next one
            raise
    finally:
        os.close(fd)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # the file's name is on the disk, too
    finally:
        os.close(directory)
