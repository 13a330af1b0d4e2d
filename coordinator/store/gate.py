"""Whether what the database says may be believed.

A database that was restored, or that a failover led to, may be older than the erasures that were carried out on the one
before. So each connection is asked, when it is made, how far it has come with the log of tombstones. One that is not
where this process knows the log to be shuts the gate: nobody reads or writes until whoever compares database and log
has fenced again what the database lacks, and opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DisconnectionError

from coordinator.store.faults import Unavailable, sqlstate

LONGEST_WAIT_S: Final = 5.0
COMPARING: Final = "the database is being compared with the log of tombstones; try again"
_UNVERIFIED: Final = -1
MARK_QUERY: Final = "SELECT num_tombstones, digest FROM evidence_state WHERE id = 1"
_SCHEMA_FAULTS: Final = "42"
"""SQLSTATE class: a table or column that is not there."""


class NotReady(Unavailable):
    """The database and the evidence do not go together, or are being compared. Its words may be told to anybody."""


class Mark(NamedTuple):
    """How far the log of tombstones is fenced in a database: so many entries, the last of them with this digest."""

    num_tombstones: int
    digest: str


class Gate:
    """Open unless somebody watches; then as they say."""

    def __init__(self) -> None:
        self.is_open = True
        self.fault: str | None = None
        """Why it stays shut until an operator acts."""
        self.generation = 0
        """Grows whenever it shuts, and when more is known: connections of an earlier one are asked again."""
        self._is_current: Callable[[Mark | None], bool] | None = None
        self._on_shut: Callable[[], None] = lambda: None
        self._opened = asyncio.Event()

    def watch(self, is_current: Callable[[Mark | None], bool], on_shut: Callable[[], None]) -> None:
        """From now on each new connection has to have a mark of which `is_current` says yes."""
        self._is_current, self._on_shut = is_current, on_shut
        self.generation += 1

    def shut(self, fault: str | None = None) -> None:
        self.fault = fault
        if self.is_open:
            self.is_open = False
            self.generation += 1
            self._opened.clear()
            self._on_shut()

    def renew(self) -> None:
        """More is known to be fenced: a connection to a server that fell behind must show."""
        self.generation += 1

    def open(self) -> None:
        self.is_open, self.fault = True, None
        self._opened.set()

    async def passed(self) -> None:
        """Wait a while for it to open. Raises `NotReady`."""
        if not self.is_open and self.fault is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._opened.wait()
        self.check()

    def check(self) -> None:
        if not self.is_open:
            raise NotReady(self.reason)

    @property
    def reason(self) -> str:
        return self.fault or COMPARING

    def attend(self, engine: sa.Engine) -> None:
        """Ask each connection of the pool when it is made, and when it is taken after something has changed."""
        sa.event.listen(engine, "connect", self._on_connect)
        sa.event.listen(engine, "checkout", self._on_checkout)

    def admits(self, read: Callable[[], Mark | None]) -> bool:
        """Whether a new connection, whose mark `read` gives, may be used; shuts if not."""
        if self._is_current is None:
            return True
        if self.is_open and self._is_current(read()):
            return True
        self.shut(self.fault)
        return False

    def _on_connect(self, connection: Any, record: Any) -> None:
        is_verified = self.admits(lambda: _mark_of(connection))
        record.info["generation"] = self.generation if is_verified else _UNVERIFIED

    def _on_checkout(self, connection: Any, record: Any, proxy: Any) -> None:
        """A connection that is not current makes room for a new one; if that is not, either, the gate shuts."""
        if not self.is_open or self._is_current is None or record.info.get("generation") == self.generation:
            return
        if not self._is_current(_mark_of(connection)):
            raise DisconnectionError("this connection may lead to an older database")
        record.info["generation"] = self.generation


def _mark_of(connection: Any) -> Mark | None:
    cursor = connection.cursor()
    try:
        cursor.execute(MARK_QUERY)
        row = cursor.fetchone()
    except Exception as error:
        if not (sqlstate(error) or "").startswith(_SCHEMA_FAULTS):
            raise
        row = None  # an older schema: whoever compares says so
    finally:
        cursor.close()
        connection.rollback()
    return None if row is None else Mark(*row)
