"""A law of the house: nothing but rows happens inside a writing transaction. Bytes, keys and tombstones are written
before it begins or after its commit, so that no lock waits for a disk and a rollback leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

from coordinator.blobs.files import FileBlobStore
from coordinator.blobs.postgres import PostgresBlobStore
from coordinator.keys.directory import DirectoryKeys
from coordinator.store.database import Database
from coordinator.tombstones.files import FileTombstoneLog

OUTSIDE = {
    FileBlobStore: ("size", "append", "truncate", "sync", "write", "read", "adopt", "delete", "list", "probe"),
    PostgresBlobStore: ("size", "append", "truncate", "sync", "write", "read", "adopt", "delete", "list", "probe"),
    DirectoryKeys: ("find_or_make", "destroy", "names", "probe"),
    FileTombstoneLog: ("append", "entries", "probe"),
}
_is_writing: ContextVar[bool] = ContextVar("is_writing", default=False)


class NotARow(BaseException):
    """Not an Exception: nobody may catch it and go on."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Raise `NotARow` where something else is done inside a writing transaction."""
    before: list[tuple[type, str, Any]] = [(Database, "write", Database.write)]
    for kind, names in OUTSIDE.items():
        before += [(kind, name, getattr(kind, name)) for name in names]
    try:
        for kind, name, original in before[1:]:
            setattr(kind, name, _outside(original))
        Database.write = _noted(Database.write)  # type: ignore[method-assign]
        yield
    finally:
        for kind, name, original in before:
            setattr(kind, name, original)


def _outside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if _is_writing.get():
            raise NotARow(f"{original.__qualname__} inside a writing transaction")
        return original(*args, **kwargs)

    assert not inspect.isgeneratorfunction(original)
    return checked


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.asynccontextmanager
    async def write(self: Database, *, is_durable: bool = True) -> AsyncIterator[Any]:
        async with original(self, is_durable=is_durable) as connection:
            token = _is_writing.set(True)
            try:
                yield connection
            finally:
                _is_writing.reset(token)

    return write
