"""Laws of the house that every test watches.

Nothing but rows happens inside a writing transaction: bytes, keys and tombstones are written before it begins or after
its commit, so that no lock waits for a disk and a rollback leaves nothing behind. And whoever writes rows that other
processes may remember (`store/warm.py`) replaces the stamps of their cohorts in the same transaction.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.blobs.files import FileBlobStore
from coordinator.blobs.postgres import PostgresBlobStore
from coordinator.keys.directory import DirectoryKeys
from coordinator.store.database import Database
from coordinator.store.sqlite import SqliteConnection
from coordinator.tombstones.files import FileTombstoneLog

OUTSIDE = {
    FileBlobStore: ("size", "append", "truncate", "sync", "write", "read", "adopt", "delete", "list", "probe"),
    PostgresBlobStore: ("size", "append", "truncate", "sync", "write", "read", "adopt", "delete", "list", "probe"),
    DirectoryKeys: ("find_or_make", "destroy", "names", "probe"),
    FileTombstoneLog: ("append", "entries", "probe"),
}
STAMPED = {
    "runs": "stamp",
    "rounds": "stamp",
    "tasks": "stamp",
    "updates": "stamp",
    "members": "members_stamp",
}
"""Tables whose rows are remembered, and the stamp of their cohort that says so."""
_written: ContextVar[set[str] | None] = ContextVar("written", default=None)
"""Tables, and columns of cohorts that are stamps, written by the transaction that is open; None: there is none."""


class NotARow(BaseException):
    """Not an Exception: nobody may catch it and go on."""


class NotStamped(BaseException):
    """Rows that others may remember were written, and they cannot know it."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Raise `NotARow` where something else is done inside a writing transaction, `NotStamped` where one that ends well
    has left a stamp as it was."""
    before: list[tuple[type, str, Any]] = [(Database, "write", Database.write)]
    before += [(kind, "execute", kind.execute) for kind in (SqliteConnection, AsyncConnection)]
    for kind, names in OUTSIDE.items():
        before += [(kind, name, getattr(kind, name)) for name in names]
    try:
        for kind, name, original in before:
            if kind in OUTSIDE:
                setattr(kind, name, _outside(original))
            elif name == "execute":
                setattr(kind, name, _seen(original))
        Database.write = _noted(Database.write)  # type: ignore[method-assign]
        yield
    finally:
        for kind, name, original in before:
            setattr(kind, name, original)


def _outside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if _written.get() is not None:
            raise NotARow(f"{original.__qualname__} inside a writing transaction")
        return original(*args, **kwargs)

    assert not inspect.isgeneratorfunction(original)
    return checked


def _seen(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def execute(self: Any, statement: Any, *args: Any, **kwargs: Any) -> Any:
        if (written := _written.get()) is not None:
            written |= written_by(statement)
        return await original(self, statement, *args, **kwargs)

    return execute


def written_by(statement: Any) -> set[str]:
    """The remembered tables that a statement writes, or the stamps that it replaces."""
    if not isinstance(statement, sa.Insert | sa.Update | sa.Delete | sa.TextClause):
        return set()
    if statement.get_execution_options().get("lethe_cold"):
        return set()
    if isinstance(statement, sa.TextClause):
        found = re.match(r"\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+\"?(\w+)", statement.text, re.IGNORECASE)
        table, is_change = (found[1], True) if found else ("", False)
    else:
        table, is_change = statement.table.name, isinstance(statement, sa.Update)  # type: ignore[union-attr]
    if table == "cohorts":
        return {name for name in ("stamp", "members_stamp") if is_change and re.search(rf"\b{name}=", str(statement))}
    return {table}.intersection(STAMPED)


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.asynccontextmanager
    async def write(self: Database, *, is_durable: bool = True) -> AsyncIterator[Any]:
        async with original(self, is_durable=is_durable) as connection:
            written: set[str] = set()
            token = _written.set(written)
            try:
                yield connection
            finally:
                _written.reset(token)
            if forgotten := {table for table in written if table in STAMPED and STAMPED[table] not in written}:
                raise NotStamped(f"{sorted(forgotten)} were written, and no stamp of their cohorts")

    return write
