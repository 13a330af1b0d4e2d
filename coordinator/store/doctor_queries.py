"""What `lethe doctor` asks the database. Reads only; each answer is of one instant, so that nobody who writes meanwhile
is taken for a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Blob
from coordinator.store import tables as t
from coordinator.store.database import Database
from coordinator.store.rows import to_entity

PAGE: Final = 500
b = t.blobs.c
_completed = sa.select(t.erasures.c.id).where(t.erasures.c.status == "completed")
_erased = (
    sa.select(t.subjects.c.client_id)
    .join(t.erasures, t.erasures.c.id == t.subjects.c.erasure_id)
    .join(t.clients, t.clients.c.id == t.subjects.c.client_id)
    .where(t.erasures.c.status == "completed", t.erasures.c.scope == "client", t.clients.c.status == "erased")
)
"""Clients of whom nothing may be left."""


async def integrity(database: Database) -> list[str]:
    """SQLite: what is wrong with its file, which may be so much that it cannot be opened."""
    try:
        async with database.read() as connection:
            said = list((await connection.execute(sa.text("PRAGMA quick_check(5)"))).scalars())
    except DatabaseError as error:
        return [str(error.orig)]
    return [] if said == ["ok"] else [str(line) for line in said]


async def sealed_or_stored(connection: AsyncConnection, after: UUID | None) -> list[Blob]:
    """Blobs that are stored, or arriving, behind that one; at most `PAGE`."""
    statement = sa.select(t.blobs).where(b.status != "dropping")
    if after is not None:
        statement = statement.where(b.id > after)
    return [to_entity(Blob, row) for row in await connection.execute(statement.order_by(b.id).limit(PAGE))]


async def num_plain(connection: AsyncConnection) -> int:
    """Stored as an older version left them."""
    found = await connection.execute(
        sa.select(sa.func.count()).select_from(t.blobs).where(b.data_key.is_(None), b.status == "stored")
    )
    return int(found.scalar_one())


async def dropping(connection: AsyncConnection) -> set[UUID]:
    return set((await connection.execute(sa.select(b.id).where(b.status == "dropping"))).scalars())


# --- erasures that are completed --------------------------------------------------------------------------------------


async def erased_clients(connection: AsyncConnection) -> set[UUID]:
    return set((await connection.execute(_erased)).scalars())


async def ended_epochs(connection: AsyncConnection) -> dict[UUID, int]:
    """The last epoch that a completed erasure has cut off, by cohort."""
    c = t.lines.c
    statement = sa.select(c.cohort_id, sa.func.max(c.epoch_before).label("epoch"))
    rows = await connection.execute(statement.where(c.erasure_id.in_(_completed)).group_by(c.cohort_id))
    return {row.cohort_id: row.epoch for row in rows}


async def outlived(connection: AsyncConnection) -> list[UUID]:
    """Stored blobs that completed erasures must have deleted: those of clients who left, models that were superseded,
    and updates that were trained on such a model and are in none that is served."""
    model, clean = t.checkpoints.alias("model"), t.checkpoints.alias("clean")
    own, base = t.updates.alias("own"), t.checkpoints.alias("base")
    is_served = sa.exists().where(
        clean.c.cohort_id == b.cohort_id,
        clean.c.epoch == b.epoch,
        clean.c.digest == b.digest,
        clean.c.superseded_by.is_(None),
    )
    is_superseded = sa.exists().where(
        model.c.cohort_id == b.cohort_id,
        model.c.epoch == b.epoch,
        model.c.digest == b.digest,
        model.c.superseded_by.in_(_completed),
    )
    in_served = sa.exists().where(
        t.contributions.c.update_id == own.c.id,
        t.checkpoints.c.id == t.contributions.c.checkpoint_id,
        t.checkpoints.c.superseded_by.is_(None),
    )
    is_served_base = sa.exists().where(
        clean.c.cohort_id == own.c.cohort_id,
        clean.c.digest == own.c.base_digest,
        clean.c.superseded_by.is_(None),
    )
    on_superseded = sa.exists().where(
        own.c.task_id == b.origin_id,
        base.c.cohort_id == own.c.cohort_id,
        base.c.epoch == own.c.epoch,
        base.c.digest == own.c.base_digest,
        base.c.superseded_by.in_(_completed),
        ~in_served,
        ~is_served_base,
    )
    must_be_gone = sa.or_(
        b.client_id.in_(_erased),
        (b.origin == "job") & is_superseded & ~is_served,
        (b.origin == "task") & on_superseded,
    )
    return list((await connection.execute(sa.select(b.id).where(b.status == "stored", must_be_gone))).scalars())


@dataclass(frozen=True, slots=True)
class Certified:
    request_id: UUID
    envelope: str
    has_salt: bool
    """Its opening is written at the next start."""


async def certificates(connection: AsyncConnection) -> list[Certified]:
    c, e = t.certificates.c, t.erasures.c
    statement = sa.select(e.id, e.salt, c.envelope).join(t.certificates, c.erasure_id == e.id)
    return [Certified(row.id, row.envelope, bool(row.salt)) for row in await connection.execute(statement)]


async def unknown_requests(connection: AsyncConnection, request_ids: list[UUID]) -> set[UUID]:
    """The requests that this database has never heard of, or takes for not yet approved."""
    e = t.erasures.c
    known = sa.select(e.id).where(e.id.in_(request_ids), e.status != "awaiting_approval")
    return set(request_ids) - set((await connection.execute(known)).scalars())


# --- rows that say that something is stored ---------------------------------------------------------------------------


async def without_blob(connection: AsyncConnection) -> dict[str, int]:
    """How many rows of each table say that their bytes are stored, where no stored blob has them."""
    u, c, k = t.updates.c, t.checkpoints.c, t.kept_updates.c

    def has_blob(run_id: sa.Column[UUID], digest: sa.Column[str]) -> sa.ColumnElement[bool]:
        return sa.exists().where(
            t.runs.c.id == run_id, b.federation_id == t.runs.c.federation_id, b.digest == digest, b.status == "stored"
        )

    wanted = {
        "updates": u.stored & u.digest.is_not(None) & ~has_blob(u.run_id, u.digest),
        "checkpoints": c.stored & ~has_blob(c.run_id, c.digest),
        "kept_updates": (k.status == "stored") & ~has_blob(k.run_id, k.digest),
    }
    found = {}
    for name, lacks in wanted.items():
        count = sa.select(sa.func.count()).select_from(t.metadata.tables[name]).where(lacks)
        found[name] = int((await connection.execute(count)).scalar_one())
    return {name: number for name, number in found.items() if number}
