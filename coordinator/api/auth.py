"""Who is asking, and what they may do.

A credential belongs to a client or has a role; it is bound to one federation, except for the installation's admin. What
belongs to another federation is answered like what does not exist.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from coordinator.api import cookies
from coordinator.api.context import Context, context_of
from coordinator.bus.port import CREDENTIALS_DROPPED, Bus
from coordinator.bus.waiters import Waiter, Waiters
from coordinator.engine.entities import Party
from coordinator.runtime.accounts import hash_of, name_of_client, split_token
from coordinator.runtime.acts import Act, Actor
from coordinator.runtime.browser_sessions import BrowserSessions
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.shell import Shell
from coordinator.store import access_queries, accounts
from coordinator.store.acts import SealedAct
from coordinator.store.database import Database
from services.core.errors import Rejected
from services.wire.v1.acts import ActAbout
from services.wire.v1.resources import Role

Action = Literal[
    "read", "run", "enrol", "upload", "download", "administer", "work", "follow", "preview", "erase", "judge", "inspect"
]

ALLOWED: Final[dict[Action, frozenset[Role | Literal["client"]]]] = {
    "read": frozenset({"viewer", "operator", "compliance", "admin"}),
    "run": frozenset({"operator", "admin"}),  # create, pause, resume, cancel
    "enrol": frozenset({"operator", "admin"}),  # enrol, rotate and remove clients
    "administer": frozenset({"admin"}),  # federations and credentials
    "work": frozenset({"client"}),  # sessions and its own tasks
    "upload": frozenset({"client", "operator", "admin"}),
    "download": frozenset({"client", "viewer", "operator", "compliance", "admin"}),  # clients: their own blobs only
    # Requests to forget; a client's own only.
    "follow": frozenset({"client", "viewer", "operator", "compliance", "admin"}),
    "preview": frozenset({"client", "operator", "compliance", "admin"}),
    "erase": frozenset({"client", "compliance", "admin"}),
    "judge": frozenset({"compliance", "admin"}),  # approve, deny, cancel
    "inspect": frozenset({"compliance", "admin"}),  # the log of acts
}

CACHED_S: Final = 2.0
_MOST_CACHED: Final = 20_000


@dataclass(frozen=True, slots=True)
class Principal:
    credential_id: UUID
    role: Role | Literal["client"]
    federation_id: UUID | None
    """None: every federation."""
    client_id: UUID | None = None
    client_name: str | None = None
    label: str = ""
    is_removed: bool = False
    is_erased: bool = False
    is_needed: bool = False
    """Erased, and still asked for work by the method that forgets it."""
    ends_at: datetime | None = None
    """When the token of an erased client is worth nothing any more."""
    superseded_at: datetime | None = None
    """The newest fence since which its worker has not said that it dropped superseded models."""
    person: str | None = None
    """The name of who signed in with OpenID Connect."""
    subject: str | None = None
    """Issuer and subject of who signed in with OpenID Connect; four eyes tells persons apart by it."""
    is_session: bool = False
    """Whether a browser's session asks, and not a token."""

    @property
    def name(self) -> str:
        """The same before and after a client's credential is rotated."""
        return name_of_client(self.client_id) if self.client_id is not None else f"credential:{self.credential_id}"


def has_dropped(superseded_at: datetime | None, dropped_at: datetime | None) -> bool:
    """Whether a client's worker has followed the newest fence."""
    return superseded_at is None or (dropped_at is not None and dropped_at >= superseded_at)


Shown = tuple[Literal["token", "session", "stream"], str]
"""What a request shows of itself: a token, or the cookie of a browser's session. Of a stream that was opened with a
session: its cookie, which is then not in use."""


class Authenticator:
    """Tokens and sessions to principals; remembers the answer for two seconds."""

    def __init__(self, database: Database, bus: Bus, sessions: BrowserSessions) -> None:
        self._database, self._sessions = database, sessions
        self._known: dict[Shown, tuple[float, Principal]] = {}
        self._num_dropped = 0
        self._watching = Waiters()
        bus.subscribe(CREDENTIALS_DROPPED, lambda ids: self.forget(map(UUID, ids.split(","))))

    async def principal(self, token: str) -> Principal:
        return await self.shown(("token", token))

    async def shown(self, shown: Shown) -> Principal:
        expires_at, known = self._known.get(shown, (0.0, None))
        if known is not None and time.monotonic() < expires_at:
            return known
        num_dropped = self._num_dropped
        kind, content = shown
        if kind == "token":
            principal = await self._of_token(content)
        else:
            principal = await self._of_session(content, is_use=kind == "session")
        if len(self._known) >= _MOST_CACHED:
            self._known.clear()
        # What is still asked of an erased client may end at any moment; and one may have been erased since it was read.
        if not principal.is_erased and num_dropped == self._num_dropped:
            self._known[shown] = time.monotonic() + CACHED_S, principal
        return principal

    async def _of_token(self, token: str) -> Principal:
        credential_id, secret = split_token(token)
        found = await self._credential(credential_id)
        if found is None or not hmac.compare_digest(found.secret_hash, hash_of(secret)):
            raise Rejected("unauthenticated", "the token is not valid here, or was revoked; ask for a new one")
        return _principal(found)

    async def _of_session(self, cookie: str, *, is_use: bool) -> Principal:
        session = await self._sessions.find(cookie, is_use=is_use)
        found = await self._credential(session.credential_id)
        if found is None:
            raise Rejected("session-ended", "this session ended with its credential, which was revoked")
        ends_at = session.ends_at if found.revoked_at is None else min(session.ends_at, found.revoked_at)
        return replace(_principal(found), is_session=True, ends_at=ends_at)

    async def _credential(self, credential_id: UUID) -> accounts.KnownCredential | None:
        """None: it is unknown, or over."""
        async with self._database.read() as connection:
            found = await accounts.known_credential(connection, credential_id)
            ends_at = found.revoked_at if found is not None else None
            is_over = ends_at is not None and ends_at <= await self._database.about_now(connection)
        return None if is_over else found

    def has_seen(self, shown: Shown) -> bool:
        """Whether it was valid not long ago."""
        return shown in self._known

    def forget(self, credential_ids: Iterable[UUID]) -> None:
        self._num_dropped += 1
        dropped = set(credential_ids)
        stale = [shown for shown, (_, principal) in self._known.items() if principal.credential_id in dropped]
        for shown in stale:
            del self._known[shown]
        self._watching.wake(map(str, dropped))

    @contextmanager
    def waking(self, waiter: Waiter, credential_id: UUID) -> Iterator[None]:
        """Meanwhile the waiter is also woken when the credential or one of its sessions has to be looked at again."""
        self._watching.add(str(credential_id), waiter)
        try:
            yield
        finally:
            self._watching.remove(str(credential_id), waiter)


def _principal(found: accounts.KnownCredential) -> Principal:
    return Principal(
        credential_id=found.id,
        role=found.role,  # type: ignore[arg-type]  # the table's own constraint
        federation_id=found.federation_id,
        client_id=found.client_id,
        client_name=found.client_name,
        label=found.label,
        is_removed=found.client_status == "removed",
        is_erased=found.client_status == "erased",
        is_needed=found.needed_by is not None,
        ends_at=found.revoked_at,
        superseded_at=None if has_dropped(found.superseded_at, found.dropped_at) else found.superseded_at,
        person=found.label if found.subject is not None else None,
        subject=found.subject,
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal that may do what the operation does, and what it can reach."""

    principal: Principal
    context: Context
    address: str
    """Where the request came from."""

    @property
    def actor(self) -> Actor:
        """The caller as the log of acts names it."""
        principal = self.principal
        name = principal.client_name or principal.label
        return Actor(principal.role, name, principal.credential_id, principal.client_id, self.address, principal.person)

    @property
    def party(self) -> Party:
        """The caller as requests to forget name it."""
        principal = self.principal
        label = principal.label or None
        return Party(principal.credential_id, principal.role, label, principal.person, principal.subject)

    @property
    def may_decide(self) -> bool:
        return self.principal.role in ALLOWED["judge"]

    async def makers(self) -> tuple[UUID, ...]:
        """The credentials that made the caller's, if it may decide anything."""
        if not self.may_decide:
            return ()
        async with self.database.read() as connection:
            return await accounts.makers(connection, self.principal.credential_id)

    async def act(
        self,
        name: str,
        federation_id: UUID,
        about: ActAbout | None = None,
        *,
        whom: Mapping[str, UUID] | None = None,
        words: str | None = None,
    ) -> SealedAct:
        """What the caller is about to do, to be recorded with it. `whom`: ids of clients by their names."""
        named = {client_id: client for client, client_id in (whom or {}).items()}
        return await self.coordinator.acts.sealed(Act(name, federation_id, self.actor, about, named, words))

    @property
    def coordinator(self) -> Coordinator:
        return self.context.coordinator

    @property
    def database(self) -> Database:
        return self.context.coordinator.database

    @property
    def shell(self) -> Shell:
        return self.context.coordinator.shell

    @property
    def within(self) -> UUID | None:
        return self.principal.federation_id

    @property
    def client_id(self) -> UUID:
        """The client's id, for an operation that only clients may use."""
        if self.principal.client_id is None:
            raise Rejected("forbidden", "only a client's credential may do this")
        return self.principal.client_id

    def federation(self, wanted: UUID | None) -> UUID:
        """The federation that a request is about: the credential's own, or the one that it names."""
        own = self.principal.federation_id
        if own is None and wanted is None:
            raise Rejected("invalid-request", "name the federation_id: this credential belongs to no federation")
        if own is not None and wanted not in (None, own):
            raise Rejected("not-found", f"there is no federation {wanted}")
        federation_id = own or wanted
        assert federation_id is not None
        return federation_id


class Allow(SecurityBase):
    """The dependency that lets a request in: `caller: Annotated[Caller, Depends(Allow("read"))]`."""

    def __init__(self, action: Action) -> None:
        self.model = HTTPBearer(description="A client's token, or one with a role; issued once, stored hashed.")
        self.scheme_name = "token"
        self._action = action
        self._roles = ALLOWED[action]

    async def __call__(self, request: Request) -> Caller:
        context = context_of(request)
        principal = await identified(request, context)
        context.limits.admit(principal.name, principal.federation_id)
        await self.check(principal, context)
        return Caller(principal, context, peer_of(request))

    async def check(self, principal: Principal, context: Context) -> None:
        """Reject who may not do this, or not any more."""
        if principal.is_removed:
            raise Rejected("client-removed", f"client {principal.client_name} was removed; stop the agent")
        if principal.is_erased and not await self._may_still(principal, context):
            raise Rejected("client-erased", await _what_is_left(principal, context))
        if principal.role not in self._roles:
            allowed = ", ".join(sorted(self._roles))
            raise Rejected("forbidden", f"a {principal.role} may not do this; it takes one of: {allowed}")

    async def _may_still(self, principal: Principal, context: Context) -> bool:
        """An erased client may read its own request and certificate while its token lives, and do what the method asks
        of it until then."""
        if self._action == "follow":
            return True
        if not principal.is_needed or principal.client_id is None:
            return False
        if self._action not in ("upload", "download"):
            return self._action == "work"
        async with context.coordinator.database.read() as connection:
            return await access_queries.holds_task(connection, principal.client_id)


async def _what_is_left(principal: Principal, context: Context) -> str:
    """What an erased client is told that asks for more than it may."""
    assert principal.client_id is not None
    async with context.coordinator.database.read() as connection:
        erasure_id = await access_queries.erased_by(connection, principal.client_id)
    until = f" until {principal.ends_at:%Y-%m-%d}" if principal.ends_at is not None else ""
    return (
        f"this client was erased by request {erasure_id}; nothing more will be asked of it: stop its agent. Its token "
        f"only reads requests that are about it alone, and their certificates,{until or ' for now'}"
    )


def peer_of(request: Request) -> str:
    return request.client.host if request.client is not None else "local"


async def identified(request: Request, context: Context) -> Principal:
    """Whose credential it is. An address that shows many wrong ones has to wait, but not those seen to be right."""
    shown, peer = _shown_by(request, context), peer_of(request)
    if shown is None or not context.authenticator.has_seen(shown):
        context.limits.admit_stranger(peer)
    try:
        if shown is None:
            raise Rejected("unauthenticated", "send `Authorization: Bearer <token>`")
        principal = await context.authenticator.shown(shown)
        if principal.is_session:
            cookies.check_csrf(request, shown[1])
        return principal
    except Rejected:
        context.limits.count_failure(peer)
        raise


async def is_shut_out(request: Request, caller: Caller, action: Action) -> bool:
    """Whether a request that was let in would be refused now: of answers that go on, which keep no session in use."""
    shown = _shown_by(request, caller.context)
    assert shown is not None
    try:
        kind, content = shown
        principal = await caller.context.authenticator.shown(("stream" if kind == "session" else kind, content))
        await Allow(action).check(principal, caller.context)
    except Rejected:
        return True
    return False


def _shown_by(request: Request, context: Context) -> Shown | None:
    """A token is meant, wherever one is sent: no other page can make a browser send it."""
    authorization = request.headers.get("authorization")
    if authorization is None:
        cookie = cookies.session_cookie(request, context.coordinator.settings)
        return None if cookie is None else ("session", cookie)
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    return ("token", token) if scheme.lower() == "bearer" and token else None


Reader = Annotated[Caller, Depends(Allow("read"))]
Operator = Annotated[Caller, Depends(Allow("run"))]
Enroller = Annotated[Caller, Depends(Allow("enrol"))]
Admin = Annotated[Caller, Depends(Allow("administer"))]
Worker = Annotated[Caller, Depends(Allow("work"))]
Uploader = Annotated[Caller, Depends(Allow("upload"))]
Downloader = Annotated[Caller, Depends(Allow("download"))]
Follower = Annotated[Caller, Depends(Allow("follow"))]
Previewer = Annotated[Caller, Depends(Allow("preview"))]
Petitioner = Annotated[Caller, Depends(Allow("erase"))]
Judge = Annotated[Caller, Depends(Allow("judge"))]
Inspector = Annotated[Caller, Depends(Allow("inspect"))]
