# Made from lethe/client/asynchronous/client.py by scripts/make-synchronous: change that file.
"""The client: one object for each kind of thing that a coordinator has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from lethe.client.answers import Document
from lethe.client.synchronous.accounts import Clients, Credentials, Federations
from lethe.client.synchronous.acts import Acts
from lethe.client.synchronous.connection import Connection
from lethe.client.synchronous.erasures import Erasures
from lethe.client.synchronous.incentives import Incentives
from lethe.client.synchronous.models import Blobs, Checkpoints, Cohorts
from lethe.client.synchronous.runs import Runs
from lethe.client.synchronous.signin import BrowserSession
from lethe.client.synchronous.work import Work
from lethe.client.target import DEFAULT_URL, token_here
from lethe.client.views import Health, Me, System, VerificationKey
from lethe.errors import Refused


class Client:
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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        found = token or token_here(None if token_file is None else Path(token_file), os.environ)
        self._connection = Connection(url or os.environ.get("LETHE_URL") or DEFAULT_URL, found, transport)
        self.url = self._connection.url
        self.federations = Federations(self._connection)
        self.clients = Clients(self._connection, self.federations)
        self.credentials = Credentials(self._connection, self.federations)
        self.blobs = Blobs(self._connection, self.federations)
        self.runs = Runs(self._connection, self.federations, self.blobs)
        self.cohorts = Cohorts(self._connection)
        self.checkpoints = Checkpoints(self._connection, self.runs)
        self.erasures = Erasures(self._connection, self.federations)
        self.incentives = Incentives(self._connection, self.federations)
        self.acts = Acts(self._connection, self.federations)
        self.browser_session = BrowserSession(self._connection)
        self.work = Work(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def health(self) -> Health:
        """The process is alive. Answers to anybody."""
        return Health.read(self.request("GET", "/healthz"))

    def readiness(self) -> Health:
        """Whether it takes work, and what is missing if not. Answers to anybody."""
        try:
            return Health.read(self.request("GET", "/readyz"))
        except Refused as refused:
            if refused.status == 503 and "checks" in refused.problem:
                return Health.read(refused.problem)
            raise

    def me(self) -> Me:
        """Whose token this is, and what it may do."""
        return Me.read(self.request("GET", "/v1/me"))

    def metrics(self) -> str:
        """Figures of this replica, as Prometheus reads them."""
        return (self._connection.content("/metrics")).decode()

    def system(self) -> System:
        """How the installation is; for its admin."""
        return System.read(self.request("GET", "/v1/system"))

    def keys(self) -> list[VerificationKey]:
        """Every key that certificates were ever signed with here, the one that signs now last. Answers to anybody."""
        return [VerificationKey.read(document) for document in self.request("GET", "/v1/keys")]

    def problem(self, code: str) -> Document:
        """What a problem's code means."""
        return dict(self.request("GET", f"/v1/problems/{code}"))

    def request(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Any:
        """An operation that this release has no method for: plain JSON in and out."""
        return self._connection.request(method, path, body, query=query, headers=headers)

    def pages(self, path: str, **query: Any) -> Iterator[Document]:
        """Every item of a list that this release has no method for."""
        for item in self._connection.pages(path, **query):
            yield item
