"""Requests to forget: preview, file, follow, judge, and the certificate."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, Unpack
from uuid import UUID, uuid4

from lethe.client.answers import Answer, is_id
from lethe.client.asynchronous.accounts import AsyncFederations
from lethe.client.asynchronous.connection import AsyncConnection
from lethe.client.certificate import Certificate
from lethe.client.views import (
    Count,
    Delivery,
    Discovery,
    ErasureEvent,
    HandedOver,
    HandOver,
    IssuedHandOver,
    Note,
    Preview,
)
from lethe.errors import NotCompleted, NotFound, Refused, Unusable
from services.wire.v1 import erasure

OVER: Final = ("completed", "denied", "cancelled", "failed")
"""States that a request does not leave."""
STANDS_STILL: Final = (*OVER, "requires_action", "awaiting_approval")
"""States in which somebody must do something, or nobody can."""
_REQUESTS: Final = "/v1/erasure-requests"


class Wish(TypedDict, total=False):
    """What a request may say beside whom it is about; `services.wire.v1.erasure` has each field's meaning."""

    scope: erasure.Scope
    samples: Mapping[str, Sequence[int]]
    method: str
    params: Mapping[str, Any]
    guarantee: erasure.Guarantee
    recovery_rounds: int | None
    recovery: Literal["training"] | erasure.RecoveryChoice | Mapping[str, Any]
    fallback: erasure.Fallback | None
    audit: Any
    reward: float | None


class Filing(Wish, total=False):
    regulation: str
    legal_deadline: datetime | str | None
    ground: erasure.Ground | None
    external_ref: str | None
    note: str | None
    needs_approval: bool
    callbacks: Sequence[Any]


class Wanted(TypedDict, total=False):
    """Which requests are looked for; what is left out does not matter."""

    federation: str | UUID | None
    status: str | Sequence[str] | None
    subject: str | None
    run: str | UUID | None
    due_before: datetime | str | None
    awaiting_my_approval: bool


class AsyncErasure(Answer, erasure.ErasureRequest):
    """A request to forget, as it was when it was asked for: `refresh()` asks again."""

    @property
    def _path(self) -> str:
        return f"{_REQUESTS}/{self.id}"

    async def refresh(self) -> AsyncErasure:
        return AsyncErasure.read(await self._connection.request("GET", self._path), self._connection)

    async def approve(self, reason: str | None = None, *, if_unchanged: bool = False) -> AsyncErasure:
        """Carry out a request that awaits approval. `if_unchanged`: only if it is still as it is here."""
        return await self._judge("approve", {} if reason is None else {"reason": reason}, if_unchanged)

    async def deny(self, reason: str, *, if_unchanged: bool = False) -> AsyncErasure:
        """Refuse a request that awaits approval, with the reason that the requester is told."""
        return await self._judge("deny", {"reason": reason}, if_unchanged)

    async def cancel(self, *, if_unchanged: bool = False) -> AsyncErasure:
        """Withdraw a request that awaits approval; after the fence there is no way back."""
        return await self._judge("cancel", None, if_unchanged)

    async def retry(self, *, if_unchanged: bool = False) -> AsyncErasure:
        """Look again at a request that requires action, once what its reason names is mended."""
        return await self._judge("retry", None, if_unchanged)

    async def extend(self, until: datetime | str, reason: str, *, if_unchanged: bool = False) -> AsyncErasure:
        """Move its legal deadline, once, with the reason that the requester is told."""
        return await self._judge("extend", {"until": until, "reason": reason}, if_unchanged)

    async def note(self, text: str) -> Note:
        """Write something about it, for those who decide."""
        return Note.read(await self._connection.request("POST", f"{self._path}/notes", {"text": text}))

    async def notes(self) -> AsyncIterator[Note]:
        """What was written about it, oldest first."""
        async for document in self._connection.pages(f"{self._path}/notes"):
            yield Note.read(document)

    async def _judge(self, verdict: str, body: Any, if_unchanged: bool) -> AsyncErasure:
        headers = {"If-Match": f'"{self.version}"'} if if_unchanged else None
        document = await self._connection.request("POST", f"{self._path}/{verdict}", body, headers=headers)
        return AsyncErasure.read(document, self._connection)

    async def events(self, *, after: int = 0) -> AsyncIterator[ErasureEvent]:
        """What happened up to now."""
        async for document in self._connection.events(f"{self._path}/events", after):
            yield ErasureEvent.read(document)

    async def follow(self, *, after: int = 0) -> AsyncGenerator[ErasureEvent]:
        """What happened and happens, until it is over, across restarts of the coordinator, too."""
        async with aclosing(self.watch(after=after)) as events:
            async for event in events:
                if event is not None:
                    yield event

    async def watch(self, *, after: int = 0) -> AsyncGenerator[ErasureEvent | None]:
        """Like `follow`; None whenever the connection was lost and is being made again."""
        async with aclosing(self._connection.follow(f"{self._path}/events/stream", after)) as documents:
            async for document in documents:
                yield None if document is None else ErasureEvent.read(document)
                if document is not None and document["data"].get("status") in OVER:
                    return

    async def wait(self) -> AsyncErasure:
        """The request when it has completed; `NotCompleted` when it ended otherwise or somebody must act first."""
        async with aclosing(self.follow()) as events:
            async for event in events:
                if event.data.get("status") in STANDS_STILL and (await self.refresh()).status in STANDS_STILL:
                    break
        request = await self.refresh()
        if request.status != "completed":
            why = f": {request.reason}" if request.reason else ""
            raise NotCompleted(f"the request is {request.status}{why}", request.status)
        return request

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """What was, or is to be, posted to its callbacks."""
        async for document in self._connection.pages(f"{self._path}/deliveries"):
            yield Delivery.read(document)

    async def certificate(self, *, opening: bool = False) -> Certificate:
        """The evidence, with its list of artefacts where that is kept. `opening`: also what shows whom it is about, for
        whoever may know that."""
        content = await self._connection.content(f"{self._path}/certificate")
        artefacts, why_not = None, None
        try:
            artefacts = await self._connection.content(f"{self._path}/certificate/artefacts")
        except NotFound as missing:  # of the first version, or not kept any more
            why_not = missing.message
        opened = await self._connection.content(f"{self._path}/opening") if opening else None
        return Certificate(content, artefacts, why_not, opened)

    async def certificate_page(self) -> str:
        """The certificate for people: one HTML file that verifies itself."""
        content: bytes = await self._connection.content(f"{self._path}/certificate/page")
        return content.decode()

    async def opening(self) -> bytes:
        """What shows whom its certificate is about. Give it to nobody else."""
        content: bytes = await self._connection.content(f"{self._path}/opening")
        return content

    async def hand_over(self, *, days: int = 14) -> IssuedHandOver:
        """A link for the client who left: whoever opens it gets the certificate, its list, its opening and the public
        key, once."""
        document = await self._connection.request("POST", f"{self._path}/hand-over", query={"days": days})
        return IssuedHandOver.read(document)

    async def hand_overs(self) -> AsyncIterator[HandOver]:
        """The links that were made, newest first: whether and when each was opened."""
        async for document in self._connection.pages(f"{self._path}/hand-overs"):
            yield HandOver.read(document)


class AsyncErasures:
    def __init__(self, connection: AsyncConnection, federations: AsyncFederations) -> None:
        self._connection, self._federations = connection, federations

    async def discovery(self) -> Discovery:
        """What can be forgotten here, how, and the public keys that certificates are verified with."""
        return Discovery.read(await self._connection.request("GET", "/v1/erasure/discovery"))

    async def preview(self, *subjects: str, federation: str | UUID | None = None, **wish: Unpack[Wish]) -> Preview:
        """What a request about these clients would do and cost. Changes nothing."""
        body = {**wish, "subjects": subjects, "federation_id": await self._federations.id_of(federation)}
        return Preview.read(await self._connection.request("POST", f"{_REQUESTS}:preview", body))

    async def file(
        self,
        *subjects: str,
        federation: str | UUID | None = None,
        idempotency_key: str | None = None,
        **wish: Unpack[Filing],
    ) -> AsyncErasure:
        """Ask that these clients be forgotten. The fence follows at once, unless the request needs approval."""
        body = {**wish, "subjects": subjects, "federation_id": await self._federations.id_of(federation)}
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        document = await self._connection.request("POST", _REQUESTS, body, headers=headers)
        return AsyncErasure.read(document, self._connection)

    async def list(self, *, sort: str | None = None, **wanted: Unpack[Wanted]) -> AsyncIterator[AsyncErasure]:
        """Newest first, unless another order is asked for. A client sees the requests that are about it alone."""
        query = await self._query(wanted)
        async for document in self._connection.pages(_REQUESTS, sort=sort, **query):
            yield AsyncErasure.read(document, self._connection)

    async def count(self, **wanted: Unpack[Wanted]) -> Count:
        """How many requests there are, by status, and how many need you or are due."""
        query = await self._query(wanted)
        return Count.read(await self._connection.request("GET", f"{_REQUESTS}:count", query=query))

    async def _query(self, wanted: Wanted) -> dict[str, Any]:
        federation, due = wanted.get("federation"), wanted.get("due_before")
        federation_id = None if federation is None else await self._federations.id_of(federation)
        others = {name: value for name, value in wanted.items() if name != "federation"}
        return {
            **others,
            "federation_id": federation_id,
            "due_before": due.isoformat() if isinstance(due, datetime) else due,
            "awaiting_my_approval": True if wanted.get("awaiting_my_approval") else None,
        }

    async def get(self, request: str | UUID) -> AsyncErasure:
        """The one of that id; for the name of a client the one open request about it, else the newest. Anything else is
        taken for an id, and the coordinator says whether it is one."""
        if not is_id(request):
            request = await self._about(str(request))
        return AsyncErasure.read(await self._connection.request("GET", f"{_REQUESTS}/{request}"), self._connection)

    async def revoke_hand_over(self, hand_over: str | UUID) -> None:
        """Make a link that was not opened yet void."""
        await self._connection.request("DELETE", f"/v1/hand-overs/{hand_over}")

    async def open_hand_over(self, hand_over: str | UUID, secret: str) -> HandedOver:
        """Open a link: both parts are behind its `#`. It can be opened once; needs no token."""
        document = await self._connection.request("POST", f"/v1/hand-overs/{hand_over}:open", {"secret": secret})
        return HandedOver.read(document)

    async def _about(self, client: str) -> str:
        try:
            found = [one async for one in self._connection.pages(_REQUESTS) if client in one["subjects"]]
        except Refused:
            return client
        wanted = [one for one in found if one["status"] not in OVER]
        if len(wanted) > 1 or (not wanted and len({one["federation_id"] for one in found}) > 1):
            ids = ", ".join(f"{one['id']} ({one['status']})" for one in (wanted or found)[:5])
            raise Unusable(f"several requests are about {client}: {ids}", next_step="name one by its id")
        newest = max(wanted or found, key=lambda one: str(one["created_at"]), default=None)
        return client if newest is None else str(newest["id"])
