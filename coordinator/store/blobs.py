"""The rows of stored blobs: announced before their first byte, found by digest or origin, given up and removed.

Whoever gives blobs up marks their rows (`drop`), commits, and only then deletes the bytes; the rows go last. So a crash
at any instant leaves a row for every byte, and nothing but rows happens inside a transaction.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Blob
from coordinator.store import tables as t
from coordinator.store.rows import listed, to_entity, to_row

b = t.blobs.c
IS_STORED: Final = b.status == "stored"
_AT_ONCE: Final = 10_000
"""A statement takes some 30 000 parameters on either back end."""
_owner: sa.BindParameter[UUID] = sa.bindparam("owner", type_=b.federation_id.type)
_digests: sa.BindParameter[Any] = sa.bindparam("digests", expanding=True)
_ids: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
_is_named = (b.federation_id == _owner) & b.digest.in_(_digests)


# --- announcing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a client may upload for."""

    id: UUID
    client_id: UUID
    cohort_id: UUID
    epoch: int


_HELD = (
    sa.select(t.tasks.c.id, t.tasks.c.client_id, t.tasks.c.cohort_id, t.tasks.c.epoch)
    .join(t.cohorts, t.cohorts.c.id == t.tasks.c.cohort_id)
    .where(
        t.tasks.c.client_id.in_(sa.bindparam("clients", expanding=True)),
        t.IS_CLAIMABLE_OR_LEASED,
        t.tasks.c.attempt > 0,
        t.tasks.c.epoch == t.cohorts.c.epoch,
    )
)
_STORED_FIRST: Final = b.status.desc()
"""Beside a plain blob there may be the one that it is being sealed as."""
_OF_TASKS = (
    sa.select(t.blobs)
    .where(b.origin_id.in_(_ids), b.digest.in_(_digests), b.origin == "task", b.status != "dropping")
    .order_by(_STORED_FIRST)
)
_OF_OPERATORS = (
    sa.select(t.blobs)
    .where(
        b.federation_id.in_(sa.bindparam("owners", expanding=True)),
        b.digest.in_(_digests),
        b.origin == "operator",
        b.status != "dropping",
    )
    .order_by(_STORED_FIRST)
)
_ANNOUNCE = insert(t.blobs).on_conflict_do_nothing()
_KNOWN = sa.select(b.id).where(b.id.in_(_ids))


async def held_tasks(connection: AsyncConnection, client_ids: Collection[UUID]) -> list[HeldTask]:
    """Tasks that these clients were given and have not answered. One whose lease ran out is still theirs until somebody
    is given it again, who can only be the same client."""
    rows = await connection.execute(_HELD, {"clients": listed(client_ids)})
    return [HeldTask(row.id, row.client_id, row.cohort_id, row.epoch) for row in rows]


async def of_tasks(connection: AsyncConnection, task_ids: Collection[UUID], digests: Collection[str]) -> list[Blob]:
    """What was uploaded, or is being uploaded, for these tasks."""
    rows = await connection.execute(_OF_TASKS, {"ids": listed(task_ids), "digests": listed(digests)})
    return [to_entity(Blob, row) for row in rows]


async def of_operators(
    connection: AsyncConnection, federation_ids: Collection[UUID], digests: Collection[str]
) -> list[Blob]:
    rows = await connection.execute(_OF_OPERATORS, {"owners": listed(federation_ids), "digests": listed(digests)})
    return [to_entity(Blob, row) for row in rows]


async def announce(connection: AsyncConnection, blobs: Sequence[Blob]) -> set[UUID]:
    """Say what is about to be stored; which of them are announced now. Where another has announced the same of the same
    origin, that stays."""
    if not blobs:
        return set()
    ids = {blob.id for blob in blobs}
    if (await connection.execute(_ANNOUNCE, [to_row(blob) for blob in blobs])).rowcount == len(ids):
        return ids
    return set((await connection.execute(_KNOWN, {"ids": listed(ids)})).scalars())


_HELD_JOB = sa.select(t.jobs.c.id).where(
    t.jobs.c.id == sa.bindparam("job"),
    t.jobs.c.lease_token == sa.bindparam("token"),
    t.jobs.c.status == "leased",
)


async def announce_output(connection: AsyncConnection, blob: Blob, token: str) -> bool:
    """Say what a kernel made before it is stored; False when nobody wants it any more."""
    if (await connection.execute(_HELD_JOB, {"job": blob.origin_id, "token": token})).first() is None:
        return False
    await announce(connection, [blob])
    return True


_OF_ANY_TASK = sa.select(b.federation_id, b.digest).where(
    b.federation_id.in_(sa.bindparam("owners", expanding=True)),
    b.digest.in_(_digests),
    b.origin == "task",
    b.status == "stored",
)


async def are_updates(connection: AsyncConnection, wanted: Collection[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
    """The digests among these that a client has sent as an update."""
    named = {"owners": [owner for owner, _ in wanted], "digests": [digest for _, digest in wanted]}
    rows = await connection.execute(_OF_ANY_TASK, named)
    return {(row.federation_id, row.digest) for row in rows}.intersection(wanted)


_USED_KEY = (
    sa.select(b.id).where((b.key_name == sa.bindparam("name")) | (b.client_key_name == sa.bindparam("name"))).limit(1)
)


async def is_key_used(connection: AsyncConnection, name: str) -> bool:
    """Whether anything was ever sealed under it and is still recorded."""
    return (await connection.execute(_USED_KEY, {"name": name})).first() is not None


# --- finding ----------------------------------------------------------------------------------------------------------


NEWEST: Final = 8
"""Of so many blobs with the same bytes one can be read, as a rule. All cohorts of a run begin with the same model, so
there may be thousands."""
_place = sa.func.row_number().over(partition_by=b.digest, order_by=(b.created_at.desc(), b.id.desc()))
_named = sa.select(t.blobs, _place.label("place")).where(_is_named, IS_STORED).subquery()
_STORED = (
    sa.select(*(_named.c[column.name] for column in t.blobs.c))
    .where(_named.c.place <= sa.bindparam("most", type_=sa.Integer))
    .order_by(_named.c.place)
)
_BY_ID = sa.select(t.blobs).where(b.id.in_(_ids))


async def stored(
    connection: AsyncConnection, federation_id: UUID, digests: Collection[str], most: int = NEWEST
) -> dict[str, list[Blob]]:
    """The newest blobs that have these bytes, by digest, at `most` so many of each. Whichever is read, they are the
    same bytes."""
    found: dict[str, list[Blob]] = {}
    named = {"owner": federation_id, "digests": listed(digests), "most": most}
    for row in await connection.execute(_STORED, named):
        blob = to_entity(Blob, row)
        assert blob.digest is not None
        found.setdefault(blob.digest, []).append(blob)
    return found


async def by_id(connection: AsyncConnection, ids: Collection[UUID]) -> list[Blob]:
    return [to_entity(Blob, row) for row in await connection.execute(_BY_ID, {"ids": listed(ids)})]


# --- giving up --------------------------------------------------------------------------------------------------------


_DROP = t.blobs.update().where(b.id.in_(_ids)).values(status="dropping")
_GIVE_UP = t.blobs.update().where(b.id.in_(_ids), b.status == "arriving").values(status="dropping")
_DROPPED = (
    sa.select(t.blobs).where(sa.text("blobs.status <> 'stored'"), b.status == "dropping").limit(sa.bindparam("most"))
)
_REMOVE = t.blobs.delete().where(b.id.in_(_ids), b.status == "dropping")
_SHARED = sa.select(b.digest).where(_is_named, b.data_key.is_(None), b.status != "dropping").distinct()


_LOCK = sa.select(b.id).where(b.id.in_(_ids)).order_by(b.id).with_for_update()


async def hold(connection: AsyncConnection, ids: Collection[UUID]) -> None:
    """Wait for those who are about to name or record these blobs, and keep others from it until the transaction ends.
    Whoever drops blobs because nobody needs them holds them first and looks then: on Postgres a statement sees what was
    committed before it began, and marking a row does not wait for who only shares it."""
    if ids:
        await connection.execute(_LOCK, {"ids": listed(ids)})


async def drop(connection: AsyncConnection, ids: Sequence[UUID]) -> None:
    """Nobody finds them from now on. The caller deletes their bytes after the commit."""
    for start in range(0, len(ids), _AT_ONCE):
        await connection.execute(_DROP, {"ids": listed(ids[start : start + _AT_ONCE])})


async def give_up(connection: AsyncConnection, ids: Collection[UUID]) -> None:
    """`drop` what was announced and is not to be stored after all; what somebody has recorded meanwhile stays."""
    if ids:
        await connection.execute(_GIVE_UP, {"ids": listed(ids)})


async def dropped(connection: AsyncConnection, most: int) -> list[Blob]:
    """Dropped blobs, whose bytes may still be there."""
    return [to_entity(Blob, row) for row in await connection.execute(_DROPPED, {"most": most})]


async def remove(connection: AsyncConnection, ids: Collection[UUID]) -> None:
    """The rows of dropped blobs, once their bytes are gone."""
    if ids:
        await connection.execute(_REMOVE, {"ids": listed(ids)})


async def still_shared(connection: AsyncConnection, federation_id: UUID, digests: Collection[str]) -> set[str]:
    """Plain bytes of an older version that another row still needs: they lie once for all who have them."""
    rows = await connection.execute(_SHARED, {"owner": federation_id, "digests": list(digests)})
    return set(rows.scalars())


_OF_UPDATES = (
    sa.select(b.id)
    .join(t.updates, t.updates.c.task_id == b.origin_id)
    .where(t.updates.c.id.in_(_ids), b.origin == "task", b.status != "dropping")
)


async def of_updates(connection: AsyncConnection, update_ids: Collection[UUID]) -> list[UUID]:
    return list((await connection.execute(_OF_UPDATES, {"ids": listed(update_ids)})).scalars())


_is_submitted = sa.exists().where(t.updates.c.task_id == b.origin_id, t.updates.c.digest == b.digest)
_is_open_job = sa.exists().where(t.jobs.c.id == b.origin_id, t.jobs.c.status.in_(("ready", "leased")))


async def abandoned(
    connection: AsyncConnection, older_than: datetime, *, client_id: UUID | None = None, most: int = 200
) -> list[UUID]:
    """Uploads, of all clients or of one, that were never submitted, and whatever was begun so long ago and never
    finished."""
    return await _found(connection, _abandoned(older_than, client_id).limit(most))


async def held_abandoned(
    connection: AsyncConnection, older_than: datetime, *, client_id: UUID | None = None, most: int = 200
) -> list[UUID]:
    """The same, held and looked at again: the caller may drop them."""
    wanted = _abandoned(older_than, client_id)
    found = await _found(connection, wanted.limit(most))
    await hold(connection, found)
    return await _found(connection, wanted.where(b.id.in_(found)))


async def _found(connection: AsyncConnection, wanted: sa.Select[Any]) -> list[UUID]:
    return list((await connection.execute(wanted.order_by(b.id))).scalars())


def _abandoned(older_than: datetime, client_id: UUID | None) -> sa.Select[Any]:
    unfinished = (b.status == "arriving") & ~((b.origin == "job") & _is_open_job)
    unsubmitted = IS_STORED & (b.origin == "task") & ~_is_submitted
    statement = sa.select(b.id).where(b.created_at < older_than, unfinished | unsubmitted)
    return statement if client_id is None else statement.where(b.client_id == client_id)


# --- keys -------------------------------------------------------------------------------------------------------------


_UNDER_OTHERS = (
    sa.select(t.blobs)
    .where(
        b.cohort_id == sa.bindparam("cohort"),
        b.status == "stored",
        b.key_name.not_in(sa.bindparam("names", expanding=True)),
    )
    .limit(sa.bindparam("most"))
)
_WRAP_AGAIN = (
    t.blobs.update()
    .where(b.id == sa.bindparam("blob"), b.key_name == sa.bindparam("old"))
    .values(data_key=sa.bindparam("wrapped"), key_name=sa.bindparam("new"))
)


async def under_other_keys(
    connection: AsyncConnection, cohort_id: UUID, names: Collection[str], most: int
) -> list[Blob]:
    """Stored blobs of the cohort that are sealed under none of these keys."""
    rows = await connection.execute(_UNDER_OTHERS, {"cohort": cohort_id, "names": list(names), "most": most})
    return [to_entity(Blob, row) for row in rows]


async def wrap_again(connection: AsyncConnection, blob: Blob, wrapped: bytes, key_name: str) -> None:
    """Note the key of its bytes as it is under another key; unless somebody has been quicker."""
    await connection.execute(_WRAP_AGAIN, {"blob": blob.id, "old": blob.key_name, "wrapped": wrapped, "new": key_name})


_PLAIN = sa.select(b.id).where(b.data_key.is_(None)).limit(1)


async def are_any_plain(connection: AsyncConnection) -> bool:
    """Whether anything still lies as an older version left it."""
    return (await connection.execute(_PLAIN)).first() is not None


_HEX_ID: Final = re.compile("[0-9a-f]{32}")
_KNOWN_PLAIN = sa.select(b.digest).where(_is_named, b.data_key.is_(None))


async def unannounced(connection: AsyncConnection, federation_id: UUID, names: Collection[str]) -> set[str]:
    """The names of stored bytes that no row has."""
    ids = {name: UUID(hex=name) for name in names if _HEX_ID.fullmatch(name)}
    plain = {f"sha256:{name}": name for name in names if len(name) == 64}
    known = {found.hex for found in (await connection.execute(_KNOWN, {"ids": list(ids.values())})).scalars()}
    rows = await connection.execute(_KNOWN_PLAIN, {"owner": federation_id, "digests": list(plain)})
    return set(names) - known - {plain[digest] for digest in rows.scalars()}
