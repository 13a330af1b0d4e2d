# Made from lethe/client/asynchronous/acts.py by scripts/make-synchronous: change that file.
"""The log of acts of a federation: who did what, when and from where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from lethe.client.synchronous.accounts import Federations
from lethe.client.synchronous.connection import Connection
from lethe.client.views import RecordedAct


class Acts:
    def __init__(self, connection: Connection, federations: Federations) -> None:
        self._connection, self._federations = connection, federations

    def list(
        self,
        *,
        federation: str | UUID | None = None,
        after: int = 0,
        about: str | UUID | None = None,
        newest_first: bool = False,
        page_size: int = 200,
    ) -> Iterator[RecordedAct]:
        """In the order of the chain. `about`: only about this run, erasure request or credential."""
        path = f"{self._federations.path_of(federation)}/acts"
        query: dict[str, Any] = {"after": after or None, "newest_first": "true" if newest_first else None}
        query |= {"about": about, "limit": page_size}
        for document in self._connection.pages(path, **query):
            yield RecordedAct.read(document)

    def head(self, *, federation: str | UUID | None = None) -> bytes:
        """The newest signed head of the chain, byte for byte: with it and the entries anybody can check that none was
        changed, removed or moved."""
        return self._connection.content(f"{self._federations.path_of(federation)}/acts/head")
