"""Blobs that lie plain, as version 0.1 stored them: found, and replaced by sealed ones in one transaction each."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Blob
from coordinator.store import blobs, kept_updates
from coordinator.store import tables as t
from coordinator.store.kept_updates import Copy
from coordinator.store.rows import to_entity

b, k, u = t.blobs.c, t.kept_updates.c, t.updates.c
_IS_PLAIN = b.data_key.is_(None) & blobs.IS_STORED


class NotNow(Exception):
    """An erasure is at work, or has taken the blob; the transaction changes nothing."""


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """A copy of an update as version 0.1 sealed it, and the update."""

    id: UUID
    copy: Copy
    update_id: UUID
    cohort_id: UUID
    task_id: UUID
    epoch: int
    is_lossless: bool
    """It may be; and it is of the update itself, not of what was added to a model in its place."""


async def some(connection: AsyncConnection, after: UUID, most: int) -> list[Blob]:
    found = sa.select(t.blobs).where(_IS_PLAIN, b.id > after).order_by(b.id).limit(most)
    return [to_entity(Blob, row) for row in await connection.execute(found)]


async def drop_unsubmitted(connection: AsyncConnection) -> None:
    """What clients sent before the upgrade and had not submitted: nobody knows for which task, so nobody can."""
    unknown = _IS_PLAIN & (b.origin == "task") & b.origin_id.is_(None)
    await connection.execute(t.blobs.update().where(unknown).values(status="dropping"))


async def hold_off(connection: AsyncConnection, federation_id: UUID) -> None:
    """Until the end of this transaction nothing of the federation is sealed. What a purge finds then is all there is,
    and afterwards its request says that it is at work."""
    row = sa.select(t.federations.c.id).where(t.federations.c.id == federation_id)
    await connection.execute(row.with_for_update(key_share=True))


async def may_seal(connection: AsyncConnection, federation_id: UUID) -> bool:
    """Not while a purge is at work: it destroys keys. Purges wait until the end of the transaction that asks."""
    await hold_off(connection, federation_id)
    e = t.erasures.c
    purging = sa.select(e.id).where(
        e.federation_id == federation_id, e.status.in_(("verifying", "requires_action")), e.fenced_at.is_not(None)
    )
    return (await connection.execute(purging.limit(1))).first() is None


def _of_same_origin(blob: Blob) -> sa.ColumnElement[bool]:
    same_id = b.origin_id.is_(None) if blob.origin_id is None else b.origin_id == blob.origin_id
    of_same = (b.federation_id == blob.federation_id) & (b.origin == blob.origin) & same_id & (b.digest == blob.digest)
    return of_same & b.data_key.is_not(None)


async def announce(connection: AsyncConnection, old: Blob, new: Blob) -> bool:
    """Say that the plain one will be that sealed one; False: not now, or no more. What another process began with it
    is given up: that one may have died."""
    if not await may_seal(connection, old.federation_id) or not await _is_still_there(connection, old):
        return False
    begun = _of_same_origin(new) & (b.status == "arriving")
    await connection.execute(t.blobs.update().where(begun).values(status="dropping"))
    await blobs.announce(connection, [new])
    return bool(await blobs.by_id(connection, [new.id]))


async def replace(connection: AsyncConnection, old: Blob, new: Blob) -> None:
    """The bytes of the sealed one are there: from now on it is the blob. Raises NotNow."""
    if not await may_seal(connection, old.federation_id) or not await drop(connection, old):
        raise NotNow
    own = (b.id == new.id) & (b.status == "arriving")
    if not (await connection.execute(t.blobs.update().where(own).values(status="stored"))).rowcount:
        raise NotNow


async def drop(connection: AsyncConnection, old: Blob) -> bool:
    mine = (b.id == old.id) & _IS_PLAIN
    return bool((await connection.execute(t.blobs.update().where(mine).values(status="dropping"))).rowcount)


async def is_sealed(connection: AsyncConnection, blob: Blob) -> bool:
    """Whether its origin has the same bytes sealed."""
    found = sa.select(b.id).where(_of_same_origin(blob), blobs.IS_STORED).limit(1)
    return (await connection.execute(found)).first() is not None


async def _is_still_there(connection: AsyncConnection, old: Blob) -> bool:
    return (await connection.execute(sa.select(b.id).where(b.id == old.id, _IS_PLAIN))).first() is not None


# --- copies of updates ------------------------------------------------------------------------------------------------


async def kept_copy(connection: AsyncConnection, blob: Blob) -> KeptCopy | None:
    """None: nobody keeps it any more."""
    statement = (
        sa.select(t.kept_updates, u.task_id, u.epoch, u.digest.label("update_digest"))
        .join(t.updates, u.id == k.update_id)
        .where(k.update_id == blob.origin_id, k.digest == blob.digest, k.status == "stored")
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    is_lossless = row.dtype == "fp32" and row.update_digest == row.source
    return KeptCopy(
        row.id, kept_updates.copy_of(row), row.update_id, row.cohort_id, row.task_id, row.epoch, is_lossless
    )


async def update_of(connection: AsyncConnection, found: KeptCopy) -> Blob | None:
    """The blob of the update itself, if that is stored beside a copy without loss."""
    if not found.is_lossless:
        return None
    own = await blobs.of_tasks(connection, [found.task_id], [found.copy.source])
    return next((blob for blob in own if blob.status == "stored"), None)


async def turn_copy(connection: AsyncConnection, found: KeptCopy, digest: str, num_bytes: int) -> None:
    """The history has it under another digest: its own when it is the update itself. Raises NotNow."""
    mine = (k.id == found.id) & (k.digest == found.copy.digest) & (k.status == "stored")
    changed = await connection.execute(t.kept_updates.update().where(mine).values(digest=digest, num_bytes=num_bytes))
    if not changed.rowcount:
        raise NotNow
    if digest == found.copy.source:
        await connection.execute(t.updates.update().where(u.id == found.update_id).values(stored=True))
