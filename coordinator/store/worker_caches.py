"""Which superseded models workers may have in their caches, and who said that it dropped them.

A fence marks the clients that were ever members of the cohorts it cut (`superseded_at`), in their own rows, which every
request reads anyway; a worker that has dropped the models is marked by the cut up to which it did (`dropped_at`). Where
a method failed, its cohorts were cut again after the fence, and what it had made has to be dropped as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from services.wire.v1.superseded_models import SupersededModels

_c, _l, _m, _x = t.clients.c, t.lines.c, t.members.c, t.checkpoints.c
_ALWAYS: Final = datetime(1970, 1, 1, tzinfo=UTC)
_cut_at = sa.func.coalesce(_l.cut_at, t.erasures.c.fenced_at, type_=_l.cut_at.type)


@dataclass(frozen=True, slots=True)
class WorkerCache:
    """The cache of a client that was ever a member of a cohort that a request cut."""

    client_id: UUID
    name: str
    is_confirmed: bool
    """Whether its worker has said, in its newest session, that it dropped what the request superseded."""


async def order_drops(connection: AsyncConnection, erasure_id: UUID) -> None:
    """Mark whoever may have a model of the cohorts that the request has cut. Locks in the order of ids."""
    cut_at = (await connection.execute(sa.select(_last_cut_by(erasure_id)))).scalar_one()
    if cut_at is None:
        return
    is_new = _c.superseded_at.is_(None) | (_c.superseded_at < cut_at)
    marked = sa.select(_c.id).where(_c.id.in_(_members_cut_by(erasure_id)), is_new).order_by(_c.id).with_for_update()
    ids = list((await connection.execute(marked)).scalars())
    change = t.clients.update().where(_c.id == sa.bindparam("client")).values(superseded_at=cut_at)
    if ids:
        await connection.execute(change, [{"client": client_id} for client_id in ids])


async def superseded(connection: AsyncConnection, client_id: UUID) -> SupersededModels:
    """What the client's worker has not yet said it dropped: models of its cohorts, and what its tasks began with and
    was never published, but for bytes that a clean model has as well."""
    client = (await connection.execute(sa.select(t.clients).where(_c.id == client_id))).one()
    if client.superseded_at is None:
        return SupersededModels(through=None, digests=[])
    since, is_own = client.dropped_at or _ALWAYS, _m.client_id == client_id
    requests = sa.select(_l.erasure_id).join(t.erasures, t.erasures.c.id == _l.erasure_id)
    requests = requests.where(_cut_at > since, _cut_at <= client.superseded_at)
    clean = t.checkpoints.alias("clean")
    published = sa.select(_x.digest).where(
        _x.superseded_by.in_(requests), _x.cohort_id.in_(sa.select(_m.cohort_id).where(is_own))
    )
    given = (
        sa.select(t.tasks.c.model_digest)
        .join(t.lines, (_l.cohort_id == t.tasks.c.cohort_id) & (t.tasks.c.epoch <= _l.epoch_before))
        .where(t.tasks.c.client_id == client_id, _l.erasure_id.in_(requests))
    )
    found = published.union(given).subquery()
    digest = found.c[0]
    is_clean = sa.exists().where(
        clean.c.digest == digest,
        clean.c.superseded_by.is_(None),
        t.runs.c.id == clean.c.run_id,
        t.runs.c.federation_id == client.federation_id,
    )
    rows = await connection.execute(sa.select(digest).where(~is_clean).order_by(digest))
    return SupersededModels(through=client.superseded_at, digests=list(rows.scalars()))


async def note_dropped(connection: AsyncConnection, client_id: UUID, through: datetime) -> None:
    """Note up to which cut a worker has dropped models; never more than was asked for."""
    is_news = (_c.superseded_at >= through) & (_c.dropped_at.is_(None) | (_c.dropped_at < through))
    await connection.execute(t.clients.update().where(_c.id == client_id, is_news).values(dropped_at=through))


async def of_request(connection: AsyncConnection, erasure_id: UUID) -> list[WorkerCache]:
    """The caches that a request concerns, by name; those of its own clients included."""
    is_confirmed = sa.func.coalesce(_c.dropped_at >= _last_cut_by(erasure_id), sa.false()).label("is_confirmed")
    statement = sa.select(_c.id, _c.name, is_confirmed).where(_c.id.in_(_members_cut_by(erasure_id)))
    rows = await connection.execute(statement.order_by(_c.name))
    return [WorkerCache(row.id, row.name, bool(row.is_confirmed)) for row in rows]


def _last_cut_by(erasure_id: UUID) -> sa.ScalarSelect[datetime | None]:
    """When the request last cut a cohort; empty before its fence."""
    last = sa.func.max(_cut_at, type_=_l.cut_at.type)
    lines = t.lines.join(t.erasures, t.erasures.c.id == _l.erasure_id)
    return sa.select(last).select_from(lines).where(_l.erasure_id == erasure_id).scalar_subquery()


def _members_cut_by(erasure_id: UUID) -> sa.Select[tuple[UUID]]:
    cut = sa.select(_l.cohort_id).where(_l.erasure_id == erasure_id)
    return sa.select(_m.client_id).where(_m.cohort_id.in_(cut))
