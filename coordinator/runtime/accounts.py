"""Federations, clients and credentials: the transactions behind them, and the first admin.

A token is `lethe_<credential id>_<secret>`; only the secret's SHA-256 is stored. A token of another form, which an
operator chose for the installation's admin, finds its credential by its own hash.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import structlog
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.bus.port import CREDENTIALS_DROPPED
from coordinator.engine.messages import RemoveClient
from coordinator.runtime.acts import Act, Actor
from coordinator.runtime.settings import Settings, variable_of
from coordinator.runtime.sweeping import sweep_uploads
from coordinator.runtime.transactions import transact
from coordinator.store import accounts
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.core.tokens import ISSUED
from services.wire.v1.acts import ActAbout
from services.wire.v1.people import FourEyes
from services.wire.v1.resources import (
    Client,
    ClientCreate,
    CredentialCreate,
    Federation,
    FederationCreate,
    IssuedCredential,
)

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

log = structlog.get_logger()
SHORTEST_ADMIN_TOKEN = 16


def split_token(token: str) -> tuple[UUID, str]:
    """(credential id, secret)."""
    if match := ISSUED.fullmatch(token):
        return UUID(match[1]), match[2]
    return UUID(bytes=hashlib.sha256(b"token:" + token.encode()).digest()[:16]), token


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def name_of_client(client_id: UUID) -> str:
    """The name under which a client sends requests and uploads, with whatever credential."""
    return f"client:{client_id}"


def new_token(credential_id: UUID) -> str:
    return f"lethe_{credential_id.hex}_{secrets.token_urlsafe(32)}"


async def _new_id(coordinator: Coordinator) -> UUID:
    """Known before the transaction that uses it, so that an act can name it."""
    async with coordinator.database.read() as connection:
        return uuid7(await coordinator.database.now(connection), os.urandom(10))


async def _issue(
    connection: AsyncConnection,
    now: datetime,
    federation_id: UUID,
    by: Actor,
    client_id: UUID | None = None,
    wanted: CredentialCreate | None = None,
    credential_id: UUID | None = None,
) -> tuple[UUID, str]:
    """A new credential's id and its token, of which only a hash is stored. It is a client's, or as `wanted`."""
    credential_id = credential_id or uuid7(now, os.urandom(10))
    token = new_token(credential_id)
    new = accounts.NewCredential(
        credential_id,
        "client" if wanted is None else wanted.role,
        hash_of(split_token(token)[1]),
        now,
        "" if wanted is None else wanted.label,
        federation_id,
        client_id,
        created_by=by.credential_id,
    )
    await accounts.add_credential(connection, new)
    return credential_id, token


async def create_federation(coordinator: Coordinator, wanted: FederationCreate, by: Actor) -> Federation:
    federation_id = await _new_id(coordinator)

    async def add(connection: AsyncConnection, now: datetime) -> datetime:
        await accounts.add_federation(connection, federation_id, wanted, now)
        return now

    try:
        created_at = await coordinator.acts.recorded(Act("federation.created", federation_id, by), add)
    except IntegrityError:
        raise Rejected("name-taken", f"there is already a federation {wanted.name}") from None
    log.info("federation.created", federation=str(federation_id), name=wanted.name)
    return Federation(id=federation_id, created_at=created_at, **dict(wanted))


async def change_four_eyes(
    coordinator: Coordinator, federation_id: UUID, four_eyes: FourEyes, within: UUID | None, by: Actor
) -> None:
    """For requests to forget that are filed from now on."""
    act = Act("federation.changed", federation_id, by, words=f"four eyes: {four_eyes}")

    async def change(connection: AsyncConnection, _: datetime) -> None:
        await accounts.federation(connection, federation_id, within)
        await accounts.set_four_eyes(connection, federation_id, four_eyes)

    await coordinator.acts.recorded(act, change)
    log.info("federation.changed", federation=str(federation_id), four_eyes=four_eyes)


async def enrol_client(
    coordinator: Coordinator, federation_id: UUID, wanted: ClientCreate, within: UUID | None, by: Actor
) -> IssuedCredential:
    async with coordinator.database.read() as connection:
        await accounts.federation(connection, federation_id, within)
        is_taken = bool(await accounts.client_ids(connection, federation_id, [wanted.name]))
    client_id = await _new_id(coordinator)
    whom = {} if is_taken else {client_id: wanted.name}  # no key is made for a client that is refused

    async def add(connection: AsyncConnection, now: datetime) -> IssuedCredential:
        await accounts.federation(connection, federation_id, within)
        await accounts.add_clients(connection, {wanted.name: client_id}, federation_id, now, wanted)
        credential_id, token = await _issue(connection, now, federation_id, by, client_id)
        client = await accounts.client(connection, client_id, within)
        return IssuedCredential(id=credential_id, role="client", token=token, client=client)

    try:
        issued = await coordinator.acts.recorded(Act("client.enrolled", federation_id, by, whom=whom), add)
    except IntegrityError:
        raise Rejected(
            "name-taken", f"the federation has, or had, a client {wanted.name}; choose another name"
        ) from None
    log.info("client.enrolled", federation=str(federation_id), client=wanted.name)
    return issued


async def rotate_client(coordinator: Coordinator, client_id: UUID, within: UUID | None, by: Actor) -> IssuedCredential:
    """A new token for the client; the old ones no longer work."""
    act = await _about_client("client.rotated", coordinator, client_id, within, by)

    async def rotate(connection: AsyncConnection, now: datetime) -> tuple[Client, list[UUID], UUID, str]:
        client = await accounts.client(connection, client_id, within)
        if client.status != "active":
            raise Rejected("conflict", f"client {client.name} was removed; enrol a new one")
        old = await accounts.active_credentials(connection, client_id)
        await accounts.revoke_credentials(connection, old, now)
        return client, old, *await _issue(connection, now, client.federation_id, by, client_id)

    client, old, credential_id, token = await coordinator.acts.recorded(act, rotate)
    announce_dropped(coordinator, old)
    log.info("client.rotated", client=client.name)
    return IssuedCredential(id=credential_id, role="client", token=token, client=client)


async def remove_client(coordinator: Coordinator, client_id: UUID, within: UUID | None, by: Actor) -> list[UUID]:
    """The client leaves its runs, and what it uploaded and nobody needs is deleted; returns its credentials, which work
    no longer. A crash in between leaves uploads to the daily sweep."""
    act = await _about_client("client.removed", coordinator, client_id, within, by)
    async with coordinator.database.read() as connection:
        credentials = await accounts.active_credentials(connection, client_id)
    await coordinator.shell.handle(RemoveClient(client_id), await coordinator.acts.sealed(act))
    announce_dropped(coordinator, credentials)
    await sweep_uploads(coordinator.database, coordinator.storage, timedelta(0), client_id)
    return credentials


async def _about_client(name: str, coordinator: Coordinator, client_id: UUID, within: UUID | None, by: Actor) -> Act:
    async with coordinator.database.read() as connection:
        client = await accounts.client(connection, client_id, within)
    return Act(name, client.federation_id, by, whom={client_id: client.name})


async def issue_credential(
    coordinator: Coordinator, federation_id: UUID, wanted: CredentialCreate, within: UUID | None, by: Actor
) -> IssuedCredential:
    async with coordinator.database.read() as connection:
        await accounts.federation(connection, federation_id, within)
    credential_id = await _new_id(coordinator)
    about, words = ActAbout(kind="credential", id=credential_id), f"{wanted.role} {wanted.label}".strip()
    act = Act("credential.issued", federation_id, by, about, words=words)

    async def issue(connection: AsyncConnection, now: datetime) -> str:
        await accounts.federation(connection, federation_id, within)
        return (await _issue(connection, now, federation_id, by, wanted=wanted, credential_id=credential_id))[1]

    token = await coordinator.acts.recorded(act, issue)
    log.info("credential.issued", credential=str(credential_id), role=wanted.role, federation=str(federation_id))
    return IssuedCredential(id=credential_id, role=wanted.role, token=token)


async def revoke_credential(coordinator: Coordinator, credential_id: UUID, within: UUID | None, by: Actor) -> None:
    async with coordinator.database.read() as connection:
        await accounts.credential(connection, credential_id, within)
        if credential_id in await accounts.platform_admins(connection):
            raise Rejected("conflict", "this is the installation's admin; replace it with LETHE_ADMIN_TOKEN")
        federation_id = await accounts.federation_of(connection, credential_id)
    act = Act("credential.revoked", federation_id, by, ActAbout(kind="credential", id=credential_id))
    await coordinator.acts.recorded(
        act, lambda connection, now: accounts.revoke_credentials(connection, [credential_id], now)
    )
    announce_dropped(coordinator, [credential_id])
    log.info("credential.revoked", credential=str(credential_id))


def announce_dropped(coordinator: Coordinator, credential_ids: Sequence[UUID]) -> None:
    if credential_ids:
        coordinator.bus.publish(CREDENTIALS_DROPPED, ",".join(map(str, credential_ids)))


# --- the first admin --------------------------------------------------------------------------------------------------


class AdminTokenUnusable(Exception):
    """Nobody could log in with the admin token that the settings give; the message says why."""


def chosen_admin_token(settings: Settings) -> str | None:
    """The token that the settings give, from the variable or else from the file; None: they leave it to us."""
    if settings.admin_token is not None:
        where, token = variable_of("admin_token"), settings.admin_token.get_secret_value().strip()
    elif settings.admin_token_file is not None:
        where = str(settings.admin_token_file)
        try:
            token = settings.admin_token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise AdminTokenUnusable(f"the admin token cannot be read from {where}: {reason}") from error
    else:
        return None
    if len(token) < SHORTEST_ADMIN_TOKEN:
        raise AdminTokenUnusable(
            f"the admin token in {where} has {len(token)} characters; at least {SHORTEST_ADMIN_TOKEN} are needed"
        )
    if not token.isascii() or len(token.split()) != 1:
        raise AdminTokenUnusable(f"the admin token in {where} is not one word of ASCII")
    return token


async def ensure_admin(coordinator: Coordinator) -> None:
    """Somebody can log in: with the token in the settings, else with one that is made once and kept in `home`.

    Replicas may do this at the same time. A token in the settings replaces the installation's former ones.
    """
    settings, database = coordinator.settings, coordinator.database
    token = chosen_admin_token(settings)
    async with database.read() as connection:
        admins = await accounts.platform_admins(connection)
    is_chosen = token is not None
    if token is None:
        if admins:
            return
        token = _kept_token(settings.home / "admin.token")
    credential_id, secret = split_token(token)
    if admins == [credential_id]:
        return

    async def install(connection: AsyncConnection) -> list[UUID] | None:
        """Those that it replaces; None: another replica was quicker."""
        now = await database.now(connection)
        others = [admin for admin in await accounts.platform_admins(connection) if admin != credential_id]
        if others and not is_chosen:
            return None
        await accounts.revoke_credentials(connection, others, now)
        if not await accounts.reinstate_credential(connection, credential_id, hash_of(secret)):
            label = "the installation's admin"
            replaced = others[0] if others else None
            new = accounts.NewCredential(credential_id, "admin", hash_of(secret), now, label, created_by=replaced)
            await accounts.add_credential(connection, new)
        return others

    try:
        replaced = await transact(database, install)
    except IntegrityError:  # another replica is installing the same token
        return
    if replaced is None:
        return
    announce_dropped(coordinator, replaced)
    log.info("admin.installed", credential=str(credential_id))


def _kept_token(path: Path) -> str:
    """The token in the file; a new one when there is none. Of several that try at once, one writes it."""
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".admin-token-") as file:  # mode 0600
            file.write(new_token(UUID(bytes=os.urandom(16), version=4)) + "\n")
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(file.name, path)
                log.info("admin.token_written", path=str(path))
            except FileExistsError:
                pass
    return path.read_text("utf-8").strip()
