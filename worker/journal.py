"""The journal: what this worker did and sent for a client, line by line, on the data holder's own disk.

It is for people (`lethe worker report`): nothing decides by it, and a line that cannot be written stops no work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
from pydantic import AwareDatetime, ValidationError

from services.core.private_files import FILE_MODE, make_directory
from services.wire.message import Digest, Id, Name, Reply
from services.wire.v1.work import TaskGrant

log = structlog.get_logger()
SUFFIX: Final = ".work.jsonl"
MOST_BYTES: Final = 8 << 20
"""A journal that has grown beyond this begins anew; the one before it is kept beside it."""


class Entry(Reply):
    """A result that the coordinator has accepted: everything that left this machine for it."""

    at: AwareDatetime
    client: Name
    coordinator: str
    run: Name
    cohort: str
    round: int
    kind: str
    task_id: Id
    num_samples: int
    update: Digest | None
    update_bytes: int
    figures: list[str]
    """Names of the figures that were sent beside it."""


class Journal:
    """The journal of one client."""

    def __init__(self, directory: Path, client_id: UUID, client: str, coordinator: str) -> None:
        self._path = directory / f"{client_id}{SUFFIX}"
        self._client, self._coordinator = client, coordinator

    def note(self, grant: TaskGrant, num_samples: int, update: tuple[str, int] | None, figures: list[str]) -> None:
        """`update`: digest and number of bytes."""
        digest, num_bytes = update or (None, 0)
        entry = Entry(
            at=datetime.now(UTC),
            client=self._client,
            coordinator=self._coordinator,
            run=grant.run_name,
            cohort=grant.cohort,
            round=grant.round,
            kind=grant.kind,
            task_id=grant.task_id,
            num_samples=num_samples,
            update=digest,
            update_bytes=num_bytes,
            figures=sorted(figures),
        )
        try:
            self._append(entry.model_dump_json().encode() + b"\n")
        except OSError as error:
            log.warning("journal.not-written", file=str(self._path), error=error.strerror)

    def _append(self, line: bytes) -> None:
        make_directory(self._path.parent)
        if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def entries(directory: Path) -> Iterator[Entry]:
    """The entries of all clients of this directory, each one's oldest first; lines that cannot be read are passed
    over."""
    for path in sorted([*directory.glob(f"*{SUFFIX}.1"), *directory.glob(f"*{SUFFIX}")]):
        for line in path.read_bytes().splitlines():
            try:
                yield Entry.model_validate_json(line)
            except ValidationError:  # cut off by a crash
                continue
