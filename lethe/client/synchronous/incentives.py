# Made from lethe/client/asynchronous/incentives.py by scripts/make-synchronous: change that file.
"""How a federation divides its clients among jobs, and what clients earned and paid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from lethe.client.synchronous.accounts import Federations
from lethe.client.synchronous.connection import Connection
from lethe.client.views import Federation, LedgerEntry, Period


class Incentives:
    def __init__(self, connection: Connection, federations: Federations) -> None:
        self._connection, self._federations = connection, federations

    def set(
        self, allocation: str | None, *, incentives: Any = None, federation: str | UUID | None = None
    ) -> Federation:
        """Divide clients in this way from now on: a new period begins. None: every client serves all jobs."""
        body: dict[str, Any] = {"allocation": allocation} | ({} if incentives is None else {"incentives": incentives})
        path = self._federations.path_of(federation)
        return Federation.read(self._connection.request("PATCH", path, body))

    def periods(self, *, federation: str | UUID | None = None) -> Iterator[Period]:
        """How clients were divided, the newest first."""
        for document in self._connection.pages(f"{self._federations.path_of(federation)}/periods"):
            yield Period.read(document)

    def preview(self, *, strategy: str | None = None, federation: str | UUID | None = None) -> Period:
        """How clients would be divided if a period began now. Changes nothing."""
        path = f"{self._federations.path_of(federation)}/periods/next"
        return Period.read(self._connection.request("GET", path, query={"strategy": strategy}))

    def ledger(self, *, federation: str | UUID | None = None) -> Iterator[LedgerEntry]:
        """What clients earned and paid, entry by entry."""
        for document in self._connection.pages(f"{self._federations.path_of(federation)}/ledger"):
            yield LedgerEntry.read(document)

    def own_ledger(self) -> Iterator[LedgerEntry]:
        """What the client whose token this is earned and paid."""
        for document in self._connection.pages("/v1/ledger"):
            yield LedgerEntry.read(document)
