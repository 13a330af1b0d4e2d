"""The log of acts: rows that commit with what they tell of, and the chain that they are linked to afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.paging import Position, page, page_by_time
from services.core.errors import Rejected
from services.wire.v1.acts import ActAbout, ActEntry, ActGap, ActPart
from services.wire.v1.resources import Page

FILED: Final = "erasure.filed"
NOTED: Final = "erasure.noted"
_a, _c = t.acts.c, t.act_chains.c
_BEGIN = insert(t.act_chains).on_conflict_do_nothing()


@dataclass(frozen=True, slots=True)
class SealedPart:
    """What an act says of somebody. `keys`: the names of those that it is sealed under; `sealed`: base64, None when a
    key was not there any more."""

    says: str
    commitment: str
    keys: list[str]
    sealed: str | None


@dataclass(frozen=True, slots=True)
class SealedAct:
    id: UUID
    federation_id: UUID
    act: str
    role: str
    about: ActAbout | None
    parts: tuple[SealedPart, ...]


@dataclass(frozen=True, slots=True)
class StoredAct:
    entry: ActEntry
    parts: tuple[SealedPart, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain of one federation: `digest` is that of entry `seq`; what is kept begins with `kept_from`, after
    `before`."""

    federation_id: UUID
    seq: int
    digest: str
    kept_from: int
    before: str
    head: str | None


async def add(connection: AsyncConnection, acts: Sequence[SealedAct], now: datetime) -> None:
    rows = [
        {
            "id": act.id,
            "federation_id": act.federation_id,
            "at": now,
            "act": act.act,
            "role": act.role,
            "about_kind": act.about.kind if act.about is not None else None,
            "about_id": act.about.id if act.about is not None else None,
            "parts": [asdict(part) for part in act.parts],
        }
        for act in acts
    ]
    if rows:
        await connection.execute(t.acts.insert(), rows)


async def chain(connection: AsyncConnection, federation_id: UUID) -> Chain | None:
    row = (await connection.execute(t.act_chains.select().where(_c.federation_id == federation_id))).first()
    return None if row is None else Chain(**row._mapping)


async def to_link(connection: AsyncConnection) -> list[UUID]:
    """Federations with acts that are not linked yet."""
    found = await connection.execute(sa.select(_a.federation_id).where(t.IS_UNCHAINED).distinct())
    return sorted(found.scalars())


async def chains(connection: AsyncConnection) -> list[Chain]:
    rows = await connection.execute(t.act_chains.select().order_by(_c.federation_id))
    return [Chain(**row._mapping) for row in rows]


async def locked_chain(connection: AsyncConnection, new: Chain) -> Chain:
    """The federation's chain; `new` if it has none. Nobody else links to it until the commit."""
    await connection.execute(_BEGIN, asdict(new))
    own = t.act_chains.select().where(_c.federation_id == new.federation_id).with_for_update()
    return Chain(**(await connection.execute(own)).one()._mapping)


async def unlinked(connection: AsyncConnection, federation_id: UUID, most: int) -> list[StoredAct]:
    """Acts that are not linked yet, in the order of their times; their entries have no number."""
    own = t.acts.select().where(t.IS_UNCHAINED, _a.federation_id == federation_id)
    rows = await connection.execute(own.order_by(_a.at, _a.id).limit(most))
    return [_stored(row, 1) for row in rows]


async def link(connection: AsyncConnection, entry: ActEntry, digest: str) -> None:
    one = t.acts.update().where(_a.id == entry.id, t.IS_UNCHAINED)
    gap = entry.gap.model_dump(mode="json") if entry.gap is not None else sa.null()
    await connection.execute(one.values(seq=entry.seq, digest=digest, gap=gap))


async def move_chain(connection: AsyncConnection, chain: Chain) -> None:
    values = {name: value for name, value in asdict(chain).items() if name != "federation_id"}
    await connection.execute(t.act_chains.update().where(_c.federation_id == chain.federation_id).values(values))


async def note_head(connection: AsyncConnection, signed: Chain, head: str) -> bool:
    """Whether the chain still stands where it did when the head was signed; if not, the next head has it all."""
    stands = (_c.federation_id == signed.federation_id) & (_c.seq == signed.seq) & (_c.kept_from == signed.kept_from)
    changed = await connection.execute(t.act_chains.update().where(stands).values(head=head))
    return bool(changed.rowcount)


async def digest_at(connection: AsyncConnection, chain: Chain, seq: int) -> str | None:
    """The digest of an entry, also of the last one that was pruned; None: the chain has no such entry."""
    if seq in (chain.seq, chain.kept_from - 1):
        return chain.digest if seq == chain.seq else chain.before
    one = sa.select(_a.digest).where(_a.federation_id == chain.federation_id, _a.seq == seq)
    return (await connection.execute(one)).scalar_one_or_none()


async def newest_before(connection: AsyncConnection, federation_id: UUID, instant: datetime) -> tuple[int, str] | None:
    """(number, digest) of the last linked act such that it and all before it are older."""
    own = _a.federation_id == federation_id
    younger = sa.select(sa.func.min(_a.seq)).where(own, _a.seq.is_not(None), _a.at >= instant).scalar_subquery()
    older = sa.select(_a.seq, _a.digest).where(own, _a.seq.is_not(None), _a.seq < sa.func.coalesce(younger, 2**62))
    row = (await connection.execute(older.order_by(_a.seq.desc()).limit(1))).first()
    return None if row is None else (row.seq, row.digest)


async def prune(connection: AsyncConnection, federation_id: UUID, through: int) -> int:
    gone = t.acts.delete().where(_a.federation_id == federation_id, _a.seq <= through)
    return (await connection.execute(gone)).rowcount


async def acts(
    connection: AsyncConnection,
    federation_id: UUID,
    position: Position,
    *,
    about: UUID | None = None,
    newest_first: bool = False,
) -> Page[StoredAct]:
    """Acts that are linked, in the order of the chain."""
    statement = t.acts.select().where(_a.federation_id == federation_id, _a.seq.is_not(None))
    if about is not None:
        statement = statement.where(_a.about_id == about)
    found = await page(connection, statement, _a.seq, position, lambda row: row, newest_first=newest_first)
    return Page(items=[_stored(row, row.seq) for row in found.items], next_cursor=found.next_cursor)


async def notes(connection: AsyncConnection, request_id: UUID, position: Position) -> Page[StoredAct]:
    """What may have been written about a request: with its filing, and as notes. Also those that are not linked yet."""
    about = t.acts.select().where(_a.about_id == request_id, _a.act.in_((FILED, NOTED)))
    found = await page_by_time(connection, about, _a.at, _a.id, position)
    return Page(items=[_stored(row, row.seq or 1) for row in found.items], next_cursor=found.next_cursor)


def _stored(row: sa.Row[Any], seq: int) -> StoredAct:
    parts = tuple(SealedPart(**part) for part in row.parts)
    about = ActAbout(kind=row.about_kind, id=row.about_id) if row.about_kind is not None else None
    try:
        entry = ActEntry(
            federation=row.federation_id,
            seq=seq,
            id=row.id,
            at=row.at,
            act=row.act,
            role=row.role,
            about=about,
            parts=[ActPart(says=part.says, commitment=part.commitment) for part in parts],  # type: ignore[arg-type]
            gap=ActGap(**row.gap) if row.gap is not None else None,
        )
    except ValueError as error:
        raise Rejected("unavailable", f"act {row.id} cannot be read: {error}") from error
    return StoredAct(entry, parts)
