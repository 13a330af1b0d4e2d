"""Federations, clients and credentials: what is read about them, and the writes that no engine message makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from services.core.errors import Rejected
from services.wire.v1.people import FourEyes
from services.wire.v1.resources import Client, ClientCreate, Credential, Federation, FederationCreate, Page
from services.wire.v1.work import MOST_MEMORY_MB


@dataclass(frozen=True, slots=True)
class KnownCredential:
    """What it takes to judge a token. `client_status` and `client_name` are those of a client's credential.
    `revoked_at` may lie ahead: an erased client's ends some time after its erasure."""

    id: UUID
    role: str
    label: str
    federation_id: UUID | None
    client_id: UUID | None
    client_name: str | None
    client_status: str | None
    needed_by: UUID | None
    secret_hash: str
    revoked_at: datetime | None
    superseded_at: datetime | None
    dropped_at: datetime | None
    subject: str | None


@dataclass(frozen=True, slots=True)
class NewCredential:
    id: UUID
    role: str
    secret_hash: str
    created_at: datetime
    label: str = ""
    federation_id: UUID | None = None
    client_id: UUID | None = None
    created_by: UUID | None = None
    """The credential that it was created, or rotated, with."""
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class PersonsCredential:
    """The credential of somebody who signs in with OpenID Connect."""

    id: UUID
    role: str
    federation_id: UUID
    label: str


_c = t.credentials.c
_KNOWN = (
    sa.select(_c.id, _c.role, _c.label, _c.federation_id, _c.client_id)
    .add_columns(t.clients.c.name.label("client_name"), t.clients.c.status.label("client_status"))
    .add_columns(t.clients.c.needed_by, _c.secret_hash, _c.revoked_at)
    .add_columns(t.clients.c.superseded_at, t.clients.c.dropped_at, _c.subject)
    .outerjoin(t.clients, t.clients.c.id == _c.client_id)
    .where(_c.id == sa.bindparam("credential"))
)


async def known_credential(connection: AsyncConnection, credential_id: UUID) -> KnownCredential | None:
    row = (await connection.execute(_KNOWN, {"credential": credential_id})).first()
    return None if row is None else KnownCredential(*row)


async def client_ids(connection: AsyncConnection, federation_id: UUID, names: Sequence[str]) -> dict[str, UUID]:
    """Ids by name; those that are not enrolled are left out."""
    own = (t.clients.c.federation_id == federation_id) & t.clients.c.name.in_(names)
    rows = await connection.execute(sa.select(t.clients.c.name, t.clients.c.id).where(own))
    return {row.name: row.id for row in rows}


async def federation(connection: AsyncConnection, federation_id: UUID, within: UUID | None) -> Federation:
    row = (await connection.execute(sa.select(t.federations).where(t.federations.c.id == federation_id))).first()
    if row is None or within not in (None, federation_id):
        raise Rejected("not-found", f"there is no federation {federation_id}")
    return _federation(row)


async def has_federation(connection: AsyncConnection, federation_id: UUID) -> bool:
    statement = sa.select(t.federations.c.id).where(t.federations.c.id == federation_id)
    return (await connection.execute(statement)).first() is not None


async def federations(connection: AsyncConnection, within: UUID | None, position: Position) -> Page[Federation]:
    statement = sa.select(t.federations)
    if within is not None:
        statement = statement.where(t.federations.c.id == within)
    return await page(connection, statement, t.federations.c.id, position, _federation)


async def client(connection: AsyncConnection, client_id: UUID, within: UUID | None) -> Client:
    row = (await connection.execute(sa.select(t.clients).where(t.clients.c.id == client_id))).first()
    if row is None or within not in (None, row.federation_id):
        raise Rejected("not-found", f"there is no client {client_id}")
    return _client(row)


async def clients(connection: AsyncConnection, federation_id: UUID, position: Position) -> Page[Client]:
    statement = sa.select(t.clients).where(t.clients.c.federation_id == federation_id)
    return await page(connection, statement, t.clients.c.id, position, _client)


_SHOWN = sa.select(t.credentials, t.clients.c.name.label("client_name")).outerjoin(
    t.clients, t.clients.c.id == t.credentials.c.client_id
)


async def credential(connection: AsyncConnection, credential_id: UUID, within: UUID | None) -> Credential:
    row = (await connection.execute(_SHOWN.where(t.credentials.c.id == credential_id))).first()
    if row is None or within not in (None, row.federation_id):
        raise Rejected("not-found", f"there is no credential {credential_id}")
    return _credential(row)


async def federation_of(connection: AsyncConnection, credential_id: UUID) -> UUID:
    """The federation of a credential that is bound to one."""
    own = sa.select(t.credentials.c.federation_id).where(t.credentials.c.id == credential_id)
    if (found := (await connection.execute(own)).scalar_one_or_none()) is None:
        raise Rejected("not-found", f"there is no credential {credential_id} of a federation")
    federation_id: UUID = found
    return federation_id


async def credentials(connection: AsyncConnection, federation_id: UUID, position: Position) -> Page[Credential]:
    statement = _SHOWN.where(t.credentials.c.federation_id == federation_id)
    return await page(connection, statement, t.credentials.c.id, position, _credential)


async def active_credentials(connection: AsyncConnection, client_id: UUID) -> list[UUID]:
    c = t.credentials.c
    return list(
        (await connection.execute(sa.select(c.id).where(c.client_id == client_id, c.revoked_at.is_(None)))).scalars()
    )


async def federation_named(connection: AsyncConnection, name: str) -> UUID | None:
    return (await connection.execute(sa.select(t.federations.c.id).where(t.federations.c.name == name))).scalar()


async def persons_credentials(connection: AsyncConnection, subject: str) -> list[PersonsCredential]:
    """The credentials that a person can sign in as: one for each role in a federation."""
    own = sa.select(_c.id, _c.role, _c.federation_id, _c.label).where(_c.subject == subject, _c.revoked_at.is_(None))
    return [PersonsCredential(*row) for row in await connection.execute(own)]


async def relabel_credential(connection: AsyncConnection, credential_id: UUID, label: str) -> None:
    await connection.execute(t.credentials.update().where(_c.id == credential_id).values(label=label))


async def makers(connection: AsyncConnection, credential_id: UUID) -> tuple[UUID, ...]:
    """The credentials that made it: with which it was created or rotated, those with which that one was, and so on. A
    person made it with all that they have: who signs in has a credential for each role."""
    own = sa.select(_c.created_by).where(_c.id == credential_id, _c.created_by.is_not(None))
    found = own.cte("makers", recursive=True)
    earlier = sa.select(_c.created_by).join(found, found.c.created_by == _c.id).where(_c.created_by.is_not(None))
    rows = await connection.execute(sa.select(found.union(earlier)))  # no row twice: it ends also where it is a circle
    made_by = set(rows.scalars())
    persons = sa.select(_c.subject).where(_c.id.in_(made_by), _c.subject.is_not(None))
    same = await connection.execute(sa.select(_c.id).where(_c.subject.in_(persons)))
    return tuple(sorted(made_by | set(same.scalars())))


async def set_four_eyes(connection: AsyncConnection, federation_id: UUID, four_eyes: FourEyes) -> None:
    own = t.federations.c.id == federation_id
    await connection.execute(t.federations.update().where(own).values(four_eyes=four_eyes))


async def platform_admins(connection: AsyncConnection) -> list[UUID]:
    """Active admins of the whole installation."""
    c = t.credentials.c
    of_all = (c.role == "admin") & c.federation_id.is_(None) & c.revoked_at.is_(None)
    return list((await connection.execute(sa.select(c.id).where(of_all))).scalars())


# --- writes -----------------------------------------------------------------------------------------------------------


async def add_federation(
    connection: AsyncConnection, federation_id: UUID, wanted: FederationCreate, now: datetime
) -> None:
    said = wanted.model_dump(mode="json")
    await connection.execute(t.federations.insert().values(id=federation_id, created_at=now, **said))


async def add_clients(
    connection: AsyncConnection,
    ids: Mapping[str, UUID],
    federation_id: UUID,
    now: datetime,
    wanted: ClientCreate | None = None,
) -> None:
    """Enrol clients under the given ids, which are listed by name; `wanted`: what else is agreed with them."""
    same: dict[str, Any] = {"federation_id": federation_id, "status": "active", "created_at": now, "devices": []}
    agreed = {} if wanted is None else wanted.model_dump(mode="json")
    same |= {name: agreed.get(name) for name in ("canary", "max_samples", "resources")}
    await connection.execute(t.clients.insert(), [{"id": ids[name], "name": name, **same} for name in ids])


async def add_credential(connection: AsyncConnection, new: NewCredential) -> None:
    await connection.execute(t.credentials.insert().values(asdict(new)))


async def revoke_credentials(connection: AsyncConnection, credential_ids: Sequence[UUID], now: datetime) -> None:
    c = t.credentials.c
    active = c.id.in_(credential_ids) & (c.revoked_at.is_(None) | (c.revoked_at > now))
    await connection.execute(t.credentials.update().where(active).values(revoked_at=now))


async def end_credentials(
    connection: AsyncConnection, client_ids: Sequence[UUID], now: datetime, ends_at: datetime
) -> None:
    """From then on the clients' tokens are worth nothing; those that were revoked before stay so."""
    c = t.credentials.c
    own = c.client_id.in_(client_ids) & (c.revoked_at.is_(None) | (c.revoked_at > now))
    await connection.execute(t.credentials.update().where(own).values(revoked_at=ends_at))


async def credentials_of(connection: AsyncConnection, client_ids: Sequence[UUID]) -> list[UUID]:
    own = t.credentials.c.client_id.in_(client_ids)
    return list((await connection.execute(sa.select(t.credentials.c.id).where(own))).scalars())


async def reinstate_credential(connection: AsyncConnection, credential_id: UUID, secret_hash: str) -> bool:
    """Make a known credential valid again; False when it is unknown."""
    same = t.credentials.c.id == credential_id
    changed = t.credentials.update().where(same).values(revoked_at=None, secret_hash=secret_hash)
    return bool((await connection.execute(changed)).rowcount)


_NOTE_SEEN = (
    t.clients.update()
    .where(
        t.clients.c.id == sa.bindparam("client"),
        t.clients.c.last_seen_at.is_(None) | (t.clients.c.last_seen_at < sa.bindparam("seen_at")),
    )
    .values(last_seen_at=sa.bindparam("seen_at"))
)


async def note_seen(connection: AsyncConnection, seen: Mapping[UUID, datetime]) -> None:
    """Write in the order given: replicas that agree on one do not wait for each other in a circle."""
    await connection.execute(_NOTE_SEEN, [{"client": client_id, "seen_at": at} for client_id, at in seen.items()])


# --- rows to resources ------------------------------------------------------------------------------------------------


def _federation(row: sa.Row[Any]) -> Federation:
    return Federation(**row._mapping)


def _client(row: sa.Row[Any]) -> Client:
    """Whether it is online is the bus's to say."""
    shown = {name: value for name, value in row._mapping.items() if name in Client.model_fields}
    return Client(**{**shown, "devices": [_device(device) for device in row.devices]}, online=False)


def _device(reported: dict[str, Any]) -> dict[str, Any]:
    """Older releases took any number of megabytes."""
    return {**reported, "memory_mb": int(min(reported.get("memory_mb", 0), MOST_MEMORY_MB))}


def _credential(row: sa.Row[Any]) -> Credential:
    shown = {name: value for name, value in row._mapping.items() if name in Credential.model_fields}
    return Credential(**shown)
