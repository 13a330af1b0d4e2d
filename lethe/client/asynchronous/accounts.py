"""Federations, their clients, and credentials."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

from lethe.client.answers import Answer, is_id, named, only
from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.views import Federation, FeedEvent, Issued, Task, Worker
from lethe.errors import NotAllowed, NotFound, Unusable
from services.wire.v1 import resources


class AsyncFederations:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(
        self, name: str, *, allocation: str | None = None, incentives: Any = None, four_eyes: str | None = None
    ) -> Federation:
        """`allocation`: how its clients are divided among jobs; every client serves all of them when absent.
        `four_eyes`: which requests to forget somebody else than the filer has to approve."""
        body = {"name": name} | _given(allocation=allocation, incentives=incentives, four_eyes=four_eyes)
        return Federation.read(await self._connection.request("POST", "/v1/federations", body))

    async def demand_four_eyes(self, four_eyes: str, *, federation: str | UUID | None = None) -> Federation:
        """Say which requests to forget, filed from now on, somebody else has to approve: off, asked (those that ask for
        approval) or all."""
        path = await self.path_of(federation)
        return Federation.read(await self._connection.request("PATCH", path, {"four_eyes": four_eyes}))

    async def list(self) -> AsyncIterator[Federation]:
        async for document in self._connection.pages("/v1/federations"):
            yield Federation.read(document)

    async def get(self, federation: str | UUID | None = None) -> Federation:
        """The one of that name or id; without one, the only federation there is."""
        if federation is not None and is_id(federation):
            return Federation.read(await self._connection.request("GET", f"/v1/federations/{federation}"))
        found = [document async for document in self._connection.pages("/v1/federations")]
        if federation is not None:
            return Federation.read(only("federation", str(federation), found))
        if not found:
            raise NotFound.by_name(
                "there is no federation yet", "first federation", next_step="make one: federations.create(NAME)"
            )
        if len(found) > 1:
            raise Unusable(f"there are several federations{named(found)}", next_step="say which: federation=NAME")
        return Federation.read(found[0])

    async def events(
        self, federation: str | UUID | None = None, *, after: int = 0, newest_first: bool = False
    ) -> AsyncIterator[FeedEvent]:
        """What happened to its runs and requests up to now."""
        path = f"{await self.path_of(federation)}/events"
        query = {"after": after or None, "newest_first": "true" if newest_first else None, "limit": 200}
        async for document in self._connection.pages(path, **query):
            yield FeedEvent.read(document)

    async def follow(
        self, federation: str | UUID | None = None, *, after: int | None = None
    ) -> AsyncGenerator[FeedEvent]:
        """What happens to its runs and requests, for ever, across restarts of the coordinator, too. From now on;
        `after`: also what happened before, behind this number."""
        path = await self.path_of(federation)
        if after is None:
            query = {"newest_first": "true", "limit": 1}
            newest = (await self._connection.request("GET", f"{path}/events", query=query))["items"]
            after = newest[0]["seq"] if newest else 0
        async with aclosing(self._connection.follow(f"{path}/events/stream", after)) as documents:
            async for document in documents:
                if document is not None:
                    yield FeedEvent.read(document)

    async def path_of(self, federation: str | UUID | None) -> str:
        """The path under which the federation's clients and credentials are found."""
        is_known = federation is not None and is_id(federation)
        return f"/v1/federations/{federation if is_known else (await self.get(federation)).id}"

    async def id_of(self, federation: str | UUID | None) -> UUID | None:
        """The id to send with a request; None where none need be sent: a credential that belongs to a federation names
        none, and a client's may not even list them."""
        if federation is not None and is_id(federation):
            return UUID(str(federation))
        try:
            return (await self.get(federation)).id
        except NotAllowed as refused:
            if refused.code == "forbidden" and federation is None:
                return None
            raise


class AsyncEnrolledClient(Answer, resources.Client):
    """A data holder with its worker."""

    async def tasks(self) -> AsyncIterator[Task]:
        """What it was asked in all runs, newest first."""
        async for document in self._connection.pages(f"/v1/clients/{self.id}/tasks"):
            yield Task.read(document)

    async def rotate(self) -> Issued:
        """A new token; the old one stops working at once."""
        return Issued.read(await self._connection.request("POST", f"/v1/clients/{self.id}/credentials"))

    async def remove(self) -> None:
        """Its worker must stop, its open tasks are withdrawn. What it contributed stays in the models."""
        await self._connection.request("DELETE", f"/v1/clients/{self.id}")


class AsyncClients:
    def __init__(self, connection: AsyncConnection, federations: AsyncFederations) -> None:
        self._connection, self._federations = connection, federations

    async def enrol(
        self,
        name: str,
        *,
        federation: str | UUID | None = None,
        canary: Any = None,
        max_samples: int | None = None,
        resources: Any = None,
    ) -> Issued:
        """Its token is in the answer, once: hand it to the data holder. `resources`: what a round costs it, else
        measured."""
        body = {"name": name, "max_samples": max_samples} | _given(canary=canary, resources=resources)
        path = f"{await self._federations.path_of(federation)}/clients"
        return Issued.read(await self._connection.request("POST", path, body))

    async def list(self, *, federation: str | UUID | None = None) -> AsyncIterator[AsyncEnrolledClient]:
        path = f"{await self._federations.path_of(federation)}/clients"
        async for document in self._connection.pages(path):
            yield AsyncEnrolledClient.read(document, self._connection)

    async def workers(self, *, federation: str | UUID | None = None) -> AsyncIterator[Worker]:
        """How the worker of each client is, by name."""
        path = f"{await self._federations.path_of(federation)}/workers"
        async for document in self._connection.pages(path, limit=200):
            yield Worker.read(document)

    async def get(self, client: str | UUID, *, federation: str | UUID | None = None) -> AsyncEnrolledClient:
        """The one of that name or id."""
        if is_id(client):
            document = await self._connection.request("GET", f"/v1/clients/{client}")
        else:
            documents = [one.document async for one in self.list(federation=federation)]
            document = only("client", str(client), documents)
        return AsyncEnrolledClient.read(document, self._connection)


class AsyncCredential(Answer, resources.Credential):
    """A credential of an operator or of a client, without its token."""

    async def revoke(self) -> None:
        await self._connection.request("DELETE", f"/v1/credentials/{self.id}")


class AsyncCredentials:
    def __init__(self, connection: AsyncConnection, federations: AsyncFederations) -> None:
        self._connection, self._federations = connection, federations

    async def create(self, role: str, *, label: str = "", federation: str | UUID | None = None) -> Issued:
        path = f"{await self._federations.path_of(federation)}/credentials"
        return Issued.read(await self._connection.request("POST", path, {"role": role, "label": label}))

    async def list(self, *, federation: str | UUID | None = None) -> AsyncIterator[AsyncCredential]:
        path = f"{await self._federations.path_of(federation)}/credentials"
        async for document in self._connection.pages(path):
            yield AsyncCredential.read(document, self._connection)

    async def revoke(self, credential: str | UUID) -> None:
        """Make a token void at once."""
        await self._connection.request("DELETE", f"/v1/credentials/{credential}")


def _given(**fields: Any) -> dict[str, Any]:
    """Those that are not None: the coordinator's own defaults count for the others."""
    return {name: value for name, value in fields.items() if value is not None}
