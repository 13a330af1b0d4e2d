"""How a federation divides its clients among jobs, and what clients earned and paid."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from lethe.client.asynchronous.accounts import AsyncFederations
from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.views import Federation, LedgerEntry, Period


class AsyncIncentives:
    def __init__(self, connection: AsyncConnection, federations: AsyncFederations) -> None:
        self._connection, self._federations = connection, federations

    async def set(
        self, allocation: str | None, *, incentives: Any = None, federation: str | UUID | None = None
    ) -> Federation:
        """Divide clients in this way from now on: a new period begins. None: every client serves all jobs."""
        body: dict[str, Any] = {"allocation": allocation} | ({} if incentives is None else {"incentives": incentives})
        path = await self._federations.path_of(federation)
        return Federation.read(await self._connection.request("PATCH", path, body))

    async def periods(self, *, federation: str | UUID | None = None) -> AsyncIterator[Period]:
        """How clients were divided, the newest first."""
        async for document in self._connection.pages(f"{await self._federations.path_of(federation)}/periods"):
            yield Period.read(document)

    async def preview(self, *, strategy: str | None = None, federation: str | UUID | None = None) -> Period:
        """How clients would be divided if a period began now. Changes nothing."""
        path = f"{await self._federations.path_of(federation)}/periods/next"
        return Period.read(await self._connection.request("GET", path, query={"strategy": strategy}))

    async def ledger(self, *, federation: str | UUID | None = None) -> AsyncIterator[LedgerEntry]:
        """What clients earned and paid, entry by entry."""
        async for document in self._connection.pages(f"{await self._federations.path_of(federation)}/ledger"):
            yield LedgerEntry.read(document)

    async def own_ledger(self) -> AsyncIterator[LedgerEntry]:
        """What the client whose token this is earned and paid."""
        async for document in self._connection.pages("/v1/ledger"):
            yield LedgerEntry.read(document)
