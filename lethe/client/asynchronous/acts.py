"""The log of acts of a federation: who did what, when and from where."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from lethe.client.asynchronous.accounts import AsyncFederations
from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.views import RecordedAct


class AsyncActs:
    def __init__(self, connection: AsyncConnection, federations: AsyncFederations) -> None:
        self._connection, self._federations = connection, federations

    async def list(
        self,
        *,
        federation: str | UUID | None = None,
        after: int = 0,
        about: str | UUID | None = None,
        newest_first: bool = False,
        page_size: int = 200,
    ) -> AsyncIterator[RecordedAct]:
        """In the order of the chain. `about`: only about this run, erasure request or credential."""
        path = f"{await self._federations.path_of(federation)}/acts"
        query: dict[str, Any] = {"after": after or None, "newest_first": "true" if newest_first else None}
        query |= {"about": about, "limit": page_size}
        async for document in self._connection.pages(path, **query):
            yield RecordedAct.read(document)

    async def head(self, *, federation: str | UUID | None = None) -> bytes:
        """The newest signed head of the chain, byte for byte: with it and the entries anybody can check that none was
        changed, removed or moved."""
        return await self._connection.content(f"{await self._federations.path_of(federation)}/acts/head")
