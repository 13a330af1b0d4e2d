"""The client: one object for each kind of thing that a coordinator has."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from lethe.client.answers import Document
from lethe.client.asynchronous.accounts import AsyncClients, AsyncCredentials, AsyncFederations
from lethe.client.asynchronous.acts import AsyncActs
from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.asynchronous.erasures import AsyncErasures
from lethe.client.asynchronous.incentives import AsyncIncentives
from lethe.client.asynchronous.models import AsyncBlobs, AsyncCheckpoints, AsyncCohorts
from lethe.client.asynchronous.runs import AsyncRuns
from lethe.client.asynchronous.signin import AsyncBrowserSession
from lethe.client.asynchronous.work import AsyncWork
from lethe.client.target import DEFAULT_URL, token_here
from lethe.client.views import Health, Me, System, VerificationKey
from lethe.errors import Refused


class AsyncClient:
    """A coordinator, as the holder of a token sees it.

    `url` and `token` may be left out: then LETHE_URL, LETHE_TOKEN and LETHE_TOKEN_FILE count, and in the end a
    coordinator that `lethe serve` started in this directory. Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: str | Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        found = token or token_here(None if token_file is None else Path(token_file), os.environ)
        self._connection = AsyncConnection(url or os.environ.get("LETHE_URL") or DEFAULT_URL, found, transport)
        self.url = self._connection.url
        self.federations = AsyncFederations(self._connection)
        self.clients = AsyncClients(self._connection, self.federations)
        self.credentials = AsyncCredentials(self._connection, self.federations)
        self.blobs = AsyncBlobs(self._connection, self.federations)
        self.runs = AsyncRuns(self._connection, self.federations, self.blobs)
        self.cohorts = AsyncCohorts(self._connection)
        self.checkpoints = AsyncCheckpoints(self._connection, self.runs)
        self.erasures = AsyncErasures(self._connection, self.federations)
        self.incentives = AsyncIncentives(self._connection, self.federations)
        self.acts = AsyncActs(self._connection, self.federations)
        self.browser_session = AsyncBrowserSession(self._connection)
        self.work = AsyncWork(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def health(self) -> Health:
        """The process is alive. Answers to anybody."""
        return Health.read(await self.request("GET", "/healthz"))

    async def readiness(self) -> Health:
        """Whether it takes work, and what is missing if not. Answers to anybody."""
        try:
            return Health.read(await self.request("GET", "/readyz"))
        except Refused as refused:
            if refused.status == 503 and "checks" in refused.problem:
                return Health.read(refused.problem)
            raise

    async def me(self) -> Me:
        """Whose token this is, and what it may do."""
        return Me.read(await self.request("GET", "/v1/me"))

    async def metrics(self) -> str:
        """Figures of this replica, as Prometheus reads them."""
        return (await self._connection.content("/metrics")).decode()

    async def system(self) -> System:
        """How the installation is; for its admin."""
        return System.read(await self.request("GET", "/v1/system"))

    async def keys(self) -> list[VerificationKey]:
        """Every key that certificates were ever signed with here, the one that signs now last. Answers to anybody."""
        return [VerificationKey.read(document) for document in await self.request("GET", "/v1/keys")]

    async def problem(self, code: str) -> Document:
        """What a problem's code means."""
        return dict(await self.request("GET", f"/v1/problems/{code}"))

    async def request(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Any:
        """An operation that this release has no method for: plain JSON in and out."""
        return await self._connection.request(method, path, body, query=query, headers=headers)

    async def pages(self, path: str, **query: Any) -> AsyncIterator[Document]:
        """Every item of a list that this release has no method for."""
        async for item in self._connection.pages(path, **query):
            yield item
