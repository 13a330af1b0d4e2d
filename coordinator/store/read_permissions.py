"""Who may read which bytes.

A digest is a name, never a permission. It names every blob with these bytes; a caller reads them while one of those
that it may see is live. What an erasure is about to delete is not live from its fence on: the leaver's own, the models
that have it, what was trained on these, and what kernels made of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.engine.entities import Blob
from coordinator.store import tables as t
from coordinator.store.blobs import NEWEST
from coordinator.store.rows import FIELDS, listed, to_entity

b = t.blobs.c
_NUM_FIELDS: Final = len(FIELDS["blobs"])
_is_named = (b.federation_id == sa.bindparam("owner")) & (b.digest == sa.bindparam("digest")) & (b.status == "stored")
_newest = (b.created_at.desc(), b.id)
_is_holder = t.clients.c.id.in_(sa.bindparam("clients", expanding=True))
_place = sa.func.row_number().over(partition_by=(b.federation_id, b.digest), order_by=_newest)
_few = (
    sa.select(t.blobs, _place.label("place"))
    .where(
        b.federation_id.in_(sa.select(t.clients.c.federation_id).where(_is_holder)),
        b.digest.in_(sa.bindparam("digests", expanding=True)),
        b.status == "stored",
    )
    .subquery()
)
_HANDED_OUT = (
    sa.select(t.clients.c.id.label("holder"), *(_few.c[column.name] for column in t.blobs.c))
    .join(t.tasks, t.tasks.c.client_id == t.clients.c.id)
    .join(_few, _few.c.federation_id == t.clients.c.federation_id)
    .where(
        _is_holder,
        (t.clients.c.status != "erased") | t.clients.c.needed_by.is_not(None),
        t.IS_CLAIMABLE_OR_LEASED,
        t.tasks.c.status == "leased",
        _few.c.place <= NEWEST,
        (t.tasks.c.model_digest == _few.c.digest) | sa.cast(t.tasks.c.work, sa.Text).contains(_few.c.digest),
    )
    .order_by(_few.c.place)
)

_model = t.checkpoints.alias("model")
_of_model = t.runs.alias("of_model")
_has_bytes = sa.and_(
    _model.c.digest == b.digest, _model.c.run_id == _of_model.c.id, _of_model.c.federation_id == b.federation_id
)
_served = sa.exists().where(_has_bytes, _model.c.superseded_by.is_(None))
_superseded_by = (
    sa.select(_model.c.superseded_by).where(_has_bytes, _model.c.superseded_by.is_not(None)).limit(1).scalar_subquery()
)
_cut_by = (
    sa.select(t.lines.c.erasure_id)
    .where(t.lines.c.cohort_id == b.cohort_id, t.lines.c.epoch_before >= b.epoch)
    .limit(1)
    .scalar_subquery()
)
_update = t.updates.alias("own")
_in_served = sa.exists().where(
    _update.c.task_id == b.origin_id,
    t.contributions.c.update_id == _update.c.id,
    t.checkpoints.c.id == t.contributions.c.checkpoint_id,
    t.checkpoints.c.superseded_by.is_(None),
)
_base = t.checkpoints.alias("base")
_is_served_base = sa.exists().where(
    _base.c.cohort_id == _update.c.cohort_id,
    _base.c.digest == _update.c.base_digest,
    _base.c.epoch <= _update.c.epoch,
    _base.c.superseded_by.is_(None),
)
_base_superseded_by = (
    sa.select(_model.c.superseded_by)
    .where(
        _update.c.task_id == b.origin_id,
        _model.c.cohort_id == _update.c.cohort_id,
        _model.c.digest == _update.c.base_digest,
        _model.c.superseded_by.is_not(None),
        ~_is_served_base,
    )
    .limit(1)
    .scalar_subquery()
)
_erased_by = (
    sa.select(t.subjects.c.erasure_id)
    .where(
        t.subjects.c.client_id == b.client_id,
        t.clients.c.id == b.client_id,
        t.clients.c.status == "erased",
    )
    .limit(1)
    .scalar_subquery()
)
_CANDIDATES = (
    sa.select(
        t.blobs,
        _served.label("is_served"),
        _in_served.label("is_in_served"),
        _superseded_by.label("superseded_by"),
        _cut_by.label("cut_by"),
        _base_superseded_by.label("base_superseded_by"),
        _erased_by.label("erased_by"),
    )
    .where(_is_named)
    .order_by(*_newest)
)


@dataclass(frozen=True, slots=True)
class ReadableBlob:
    """The blobs with the wanted bytes that the caller may read, the newest first; or why it may not read any more."""

    blobs: tuple[Blob, ...] = ()
    are_newest: bool = False
    """Whether they are the newest of all that have these bytes, any of which the caller may read."""
    taken_by: UUID | None = None
    """The erasure."""


class WantedBytes(NamedTuple):
    """What a client asks for."""

    federation_id: UUID
    digest: str
    client_id: UUID


async def for_clients(connection: AsyncConnection, wanted: Collection[WantedBytes]) -> dict[WantedBytes, ReadableBlob]:
    """The models of tasks that they hold, and what they uploaded themselves."""
    named = {"clients": listed({w.client_id for w in wanted}), "digests": listed({w.digest for w in wanted})}
    found: dict[WantedBytes, dict[UUID, Blob]] = {}
    for holder, *row in await connection.execute(_HANDED_OUT, named):
        blob = to_entity(Blob, row)
        assert blob.digest is not None
        found.setdefault(WantedBytes(blob.federation_id, blob.digest, holder), {})[blob.id] = blob
    return {
        w: ReadableBlob(tuple(found[w].values()), are_newest=True) if w in found else await _live(connection, *w)
        for w in wanted
    }


async def for_operator(connection: AsyncConnection, federation_id: UUID, digest: str) -> ReadableBlob:
    return await _live(connection, federation_id, digest, None)


async def _live(connection: AsyncConnection, federation_id: UUID, digest: str, client_id: UUID | None) -> ReadableBlob:
    """Also when nothing is stored any more: whoever knew the bytes is told which erasure took them."""
    found = await connection.execute(_CANDIDATES, {"owner": federation_id, "digest": digest})
    live, taken_by = list[Blob](), None
    for row in found:
        blob = to_entity(Blob, row[:_NUM_FIELDS])
        if client_id is not None and blob.client_id != client_id:
            continue
        reason = _taken_by(blob, row)
        if reason is None:
            live.append(blob)
        taken_by = taken_by or reason
    if live:
        return ReadableBlob(tuple(live))
    if client_id is None and taken_by is None:
        taken_by = await _purged_by(connection, federation_id, digest)
    return ReadableBlob(taken_by=taken_by)


def _taken_by(blob: Blob, row: Any) -> UUID | None:
    match blob.origin:
        case "operator":
            return None
        case "job":
            return None if row.is_served else row.superseded_by or row.cut_by
    if row.erased_by is not None:
        return UUID(str(row.erased_by))
    return None if row.is_in_served else row.cut_by or row.base_superseded_by


async def _purged_by(connection: AsyncConnection, federation_id: UUID, digest: str) -> UUID | None:
    """The erasure since which the model of that digest is not served."""
    c = t.checkpoints.c
    statement = (
        sa.select(c.superseded_by)
        .join(t.runs, t.runs.c.id == c.run_id)
        .where(t.runs.c.federation_id == federation_id, c.digest == digest)
    )
    found = (await connection.execute(statement)).scalars().all()
    return found[0] if found and None not in found else None


_LIVE_MODEL = sa.select(t.blobs).where(_is_named, b.origin == "job", _served).order_by(*_newest)


async def served_model(connection: AsyncConnection, federation_id: UUID, digest: str) -> Blob | None:
    """A model with these bytes that is served; nobody needs to upload it."""
    row = (await connection.execute(_LIVE_MODEL, {"owner": federation_id, "digest": digest})).first()
    return None if row is None else to_entity(Blob, row)


_this = sa.bindparam("erasure", type_=t.erasures.c.id.type)
_is_of_leaver = sa.exists().where(
    t.subjects.c.erasure_id == _this,
    t.subjects.c.client_id == b.client_id,
    t.erasures.c.id == t.subjects.c.erasure_id,
    t.erasures.c.scope == "client",
)
_is_superseded = sa.exists().where(_has_bytes, _model.c.superseded_by == _this)
_is_cut = sa.exists().where(
    t.lines.c.erasure_id == _this, t.lines.c.cohort_id == b.cohort_id, t.lines.c.epoch_before >= b.epoch
)
_is_trained_on_superseded = sa.exists().where(
    _update.c.task_id == b.origin_id,
    _model.c.cohort_id == _update.c.cohort_id,
    _model.c.digest == _update.c.base_digest,
    _model.c.superseded_by == _this,
)
_is_after = sa.exists().where(  # of an exact method: nothing tainted is read any more, but equal bytes may be made
    t.lines.c.erasure_id == _this,
    t.lines.c.cohort_id == b.cohort_id,
    t.lines.c.epoch_after <= b.epoch,
    t.lines.c.action != "unlearned",
)
_is_derived = sa.case(
    (b.origin == "job", ~_served & (_is_superseded | _is_cut)),
    (b.origin == "operator", sa.false()),
    else_=_is_of_leaver | (~_in_served & _is_trained_on_superseded & ~_is_after),
)
_LEFT = sa.select(b.digest, b.origin, _is_derived.label("is_derived")).where(
    b.federation_id == sa.bindparam("owner"), b.digest.in_(sa.bindparam("digests", expanding=True))
)
_LOOKED_UP_AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True)
class Left:
    """Whose bytes are equal to some that were purged."""

    origins: frozenset[str]
    is_clean: bool
    """False: the request should have purged one of them, too. What another request is about to purge is its affair."""


async def left(
    connection: AsyncConnection, federation_id: UUID, erasure_id: UUID, digests: list[str]
) -> dict[str, Left]:
    """What still has these bytes, by digest; digests that nothing has are left out."""
    found: dict[str, Left] = {}
    for start in range(0, len(digests), _LOOKED_UP_AT_ONCE):
        some = digests[start : start + _LOOKED_UP_AT_ONCE]
        wanted = {"owner": federation_id, "erasure": erasure_id, "digests": some}
        for row in await connection.execute(_LEFT, wanted):
            before = found.get(row.digest, Left(frozenset(), True))
            found[row.digest] = Left(before.origins | {row.origin}, before.is_clean and not row.is_derived)
    return found
