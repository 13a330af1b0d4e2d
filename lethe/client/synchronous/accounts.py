# Made from lethe/client/asynchronous/accounts.py by scripts/make-synchronous: change that file.
"""Federations, their clients, and credentials."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

from lethe.client.answers import Answer, is_id, named, only
from lethe.client.synchronous.connection import Connection
from lethe.client.views import Federation, FeedEvent, Issued, Task, Worker
from lethe.errors import NotAllowed, NotFound, Unusable
from services.wire.v1 import resources


class Federations:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self, name: str, *, allocation: str | None = None, incentives: Any = None, four_eyes: str | None = None
    ) -> Federation:
        """`allocation`: how its clients are divided among jobs; every client serves all of them when absent.
        `four_eyes`: which requests to forget somebody else than the filer has to approve."""
        body = {"name": name} | _given(allocation=allocation, incentives=incentives, four_eyes=four_eyes)
        return Federation.read(self._connection.request("POST", "/v1/federations", body))

    def demand_four_eyes(self, four_eyes: str, *, federation: str | UUID | None = None) -> Federation:
        """Say which requests to forget, filed from now on, somebody else has to approve: off, asked (those that ask for
        approval) or all."""
        path = self.path_of(federation)
        return Federation.read(self._connection.request("PATCH", path, {"four_eyes": four_eyes}))

    def list(self) -> Iterator[Federation]:
        for document in self._connection.pages("/v1/federations"):
            yield Federation.read(document)

    def get(self, federation: str | UUID | None = None) -> Federation:
        """The one of that name or id; without one, the only federation there is."""
        if federation is not None and is_id(federation):
            return Federation.read(self._connection.request("GET", f"/v1/federations/{federation}"))
        found = [document for document in self._connection.pages("/v1/federations")]
        if federation is not None:
            return Federation.read(only("federation", str(federation), found))
        if not found:
            raise NotFound.by_name(
                "there is no federation yet", "first federation", next_step="make one: federations.create(NAME)"
            )
        if len(found) > 1:
            raise Unusable(f"there are several federations{named(found)}", next_step="say which: federation=NAME")
        return Federation.read(found[0])

    def events(
        self, federation: str | UUID | None = None, *, after: int = 0, newest_first: bool = False
    ) -> Iterator[FeedEvent]:
        """What happened to its runs and requests up to now."""
        path = f"{self.path_of(federation)}/events"
        query = {"after": after or None, "newest_first": "true" if newest_first else None, "limit": 200}
        for document in self._connection.pages(path, **query):
            yield FeedEvent.read(document)

    def follow(self, federation: str | UUID | None = None, *, after: int | None = None) -> Generator[FeedEvent]:
        """What happens to its runs and requests, for ever, across restarts of the coordinator, too. From now on;
        `after`: also what happened before, behind this number."""
        path = self.path_of(federation)
        if after is None:
            query = {"newest_first": "true", "limit": 1}
            newest = (self._connection.request("GET", f"{path}/events", query=query))["items"]
            after = newest[0]["seq"] if newest else 0
        with closing(self._connection.follow(f"{path}/events/stream", after)) as documents:
            for document in documents:
                if document is not None:
                    yield FeedEvent.read(document)

    def path_of(self, federation: str | UUID | None) -> str:
        """The path under which the federation's clients and credentials are found."""
        is_known = federation is not None and is_id(federation)
        return f"/v1/federations/{federation if is_known else (self.get(federation)).id}"

    def id_of(self, federation: str | UUID | None) -> UUID | None:
        """The id to send with a request; None where none need be sent: a credential that belongs to a federation names
        none, and a client's may not even list them."""
        if federation is not None and is_id(federation):
            return UUID(str(federation))
        try:
            return (self.get(federation)).id
        except NotAllowed as refused:
            if refused.code == "forbidden" and federation is None:
                return None
            raise


class EnrolledClient(Answer, resources.Client):
    """A data holder with its worker."""

    def tasks(self) -> Iterator[Task]:
        """What it was asked in all runs, newest first."""
        for document in self._connection.pages(f"/v1/clients/{self.id}/tasks"):
            yield Task.read(document)

    def rotate(self) -> Issued:
        """A new token; the old one stops working at once."""
        return Issued.read(self._connection.request("POST", f"/v1/clients/{self.id}/credentials"))

    def remove(self) -> None:
        """Its worker must stop, its open tasks are withdrawn. What it contributed stays in the models."""
        self._connection.request("DELETE", f"/v1/clients/{self.id}")


class Clients:
    def __init__(self, connection: Connection, federations: Federations) -> None:
        self._connection, self._federations = connection, federations

    def enrol(
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
        path = f"{self._federations.path_of(federation)}/clients"
        return Issued.read(self._connection.request("POST", path, body))

    def list(self, *, federation: str | UUID | None = None) -> Iterator[EnrolledClient]:
        path = f"{self._federations.path_of(federation)}/clients"
        for document in self._connection.pages(path):
            yield EnrolledClient.read(document, self._connection)

    def workers(self, *, federation: str | UUID | None = None) -> Iterator[Worker]:
        """How the worker of each client is, by name."""
        path = f"{self._federations.path_of(federation)}/workers"
        for document in self._connection.pages(path, limit=200):
            yield Worker.read(document)

    def get(self, client: str | UUID, *, federation: str | UUID | None = None) -> EnrolledClient:
        """The one of that name or id."""
        if is_id(client):
            document = self._connection.request("GET", f"/v1/clients/{client}")
        else:
            documents = [one.document for one in self.list(federation=federation)]
            document = only("client", str(client), documents)
        return EnrolledClient.read(document, self._connection)


class Credential(Answer, resources.Credential):
    """A credential of an operator or of a client, without its token."""

    def revoke(self) -> None:
        self._connection.request("DELETE", f"/v1/credentials/{self.id}")


class Credentials:
    def __init__(self, connection: Connection, federations: Federations) -> None:
        self._connection, self._federations = connection, federations

    def create(self, role: str, *, label: str = "", federation: str | UUID | None = None) -> Issued:
        path = f"{self._federations.path_of(federation)}/credentials"
        return Issued.read(self._connection.request("POST", path, {"role": role, "label": label}))

    def list(self, *, federation: str | UUID | None = None) -> Iterator[Credential]:
        path = f"{self._federations.path_of(federation)}/credentials"
        for document in self._connection.pages(path):
            yield Credential.read(document, self._connection)

    def revoke(self, credential: str | UUID) -> None:
        """Make a token void at once."""
        self._connection.request("DELETE", f"/v1/credentials/{credential}")


def _given(**fields: Any) -> dict[str, Any]:
    """Those that are not None: the coordinator's own defaults count for the others."""
    return {name: value for name, value in fields.items() if value is not None}
