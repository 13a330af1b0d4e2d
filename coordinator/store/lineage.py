"""Checkpoints and how they came to be: bases, updates, parents, weights, and whose data is in them. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.paging import Position, page
from services.core.errors import Rejected
from services.wire.v1.resources import Checkpoint, Contribution, Page, ParentModel

MadeBy = Literal["initialisation", "step", "average", "stack", "copy", "method"]


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    checkpoint: Checkpoint
    federation_id: UUID
    scale: float
    quantum: float | None
    merge: str | None
    """How the run's topology makes one model of many."""

    def made_by(self, num_parents: int) -> MadeBy:
        match self.checkpoint.kind:
            case "init":
                return "initialisation"
            case "aggregate":
                return "step"
            case "forgotten":
                return "method"
            case "merge" if self.merge == "ensemble":
                return "stack"
            case "merge" if num_parents == 1:
                return "copy"
        return "average"


async def checkpoint(connection: AsyncConnection, checkpoint_id: UUID, within: UUID | None) -> FoundCheckpoint:
    statement = _checkpoints().where(t.checkpoints.c.id == checkpoint_id)
    if within is not None:
        statement = statement.where(t.runs.c.federation_id == within)
    row = (await connection.execute(statement)).first()
    if row is None:
        raise Rejected("not-found", f"there is no checkpoint {checkpoint_id}")
    quantum, merge = row.spec["training"].get("quantum"), row.spec["topology"].get("merge")
    return FoundCheckpoint(_checkpoint(row), row.federation_id, row.scale, quantum, merge)


async def checkpoints(connection: AsyncConnection, run_id: UUID, position: Position) -> Page[Checkpoint]:
    statement = _checkpoints().where(t.checkpoints.c.run_id == run_id)
    return await page(connection, statement, t.checkpoints.c.id, position, _checkpoint)


async def contributions(connection: AsyncConnection, checkpoint_id: UUID) -> list[Contribution]:
    """The contributions in the order in which the aggregation added them."""
    c, u = t.contributions.c, t.updates.c
    statement = (
        sa.select(c.update_id, c.client_id, c.weight, c.staleness, c.factor)
        .add_columns(u.client_name, u.digest, u.base_digest, u.num_samples, u.stored)
        .join(t.updates, u.id == c.update_id)
        .where(c.checkpoint_id == checkpoint_id)
        .order_by(c.position)
    )
    return [Contribution(**row._mapping) for row in await connection.execute(statement)]


async def parents(connection: AsyncConnection, checkpoint_id: UUID) -> list[ParentModel]:
    """The models that a merged or re-initialised one was made of, in the order in which they were added."""
    p, c = t.parents.c, t.checkpoints.c
    statement = (
        sa.select(p.parent_id.label("checkpoint_id"), p.weight, c.round, c.digest, c.superseded_by, c.stored)
        .add_columns(t.cohorts.c.name.label("cohort"))
        .join(t.checkpoints, c.id == p.parent_id)
        .join(t.cohorts, t.cohorts.c.id == c.cohort_id)
        .where(p.checkpoint_id == checkpoint_id)
        .order_by(p.position)
    )
    return [ParentModel(**row._mapping) for row in await connection.execute(statement)]


@dataclass(frozen=True, slots=True)
class Descent:
    """A checkpoint's ancestors and clients; it never changes."""

    ancestors: list[UUID]
    """Newest first, without the checkpoint itself."""
    clients: list[str]


async def descent(connection: AsyncConnection, checkpoint_id: UUID) -> Descent:
    """Over bases and parents alike. The ancestors end where a method made a model of a quarantined one; the clients are
    still those behind that, without the forgotten ones."""
    c = t.checkpoints.c
    family, shown = _family(checkpoint_id, c.base_id.is_not(None)), _family(checkpoint_id, c.kind == "aggregate")
    older = (
        sa.select(c.id)
        .where(c.id.in_(sa.select(shown.c.id)), c.id != checkpoint_id)
        .order_by(c.created_at.desc(), c.epoch.desc(), c.round.desc(), c.id.desc())
    )
    forgetting = sa.select(c.forgets).where(c.id.in_(sa.select(family.c.id)), c.kind == "forgotten")
    forgotten = {UUID(one) for ids in (await connection.execute(forgetting)).scalars() for one in ids}
    names = (
        sa.select(t.clients.c.name)
        .join(t.contributions, t.contributions.c.client_id == t.clients.c.id)
        .where(t.contributions.c.checkpoint_id.in_(sa.select(family.c.id)), t.clients.c.id.not_in(forgotten))
        .distinct()
        .order_by(t.clients.c.name)
    )
    return Descent(
        ancestors=list((await connection.execute(older)).scalars()),
        clients=list((await connection.execute(names)).scalars()),
    )


def _family(checkpoint_id: UUID, goes_on: sa.ColumnElement[bool]) -> sa.CTE:
    """A model and all that it was made of; `goes_on`: whose bases count."""
    c, p = t.checkpoints.c, t.parents.c
    edges = sa.union_all(
        sa.select(c.id.label("child"), c.base_id.label("above")).where(c.base_id.is_not(None), goes_on),
        sa.select(p.checkpoint_id.label("child"), p.parent_id.label("above")),
    ).subquery()
    family = sa.select(c.id).where(c.id == checkpoint_id).cte("family", recursive=True)
    return family.union(sa.select(edges.c.above).join(family, edges.c.child == family.c.id))


def _checkpoints() -> sa.Select[Any]:
    num_bytes = (
        sa.select(sa.func.max(t.blobs.c.num_bytes))
        .where(
            t.blobs.c.federation_id == t.runs.c.federation_id,
            t.blobs.c.digest == t.checkpoints.c.digest,
            t.blobs.c.status == "stored",
        )
        .scalar_subquery()
    )
    return (
        sa.select(t.checkpoints, t.runs.c.federation_id, t.runs.c.spec)
        .add_columns(t.cohorts.c.name.label("cohort"), t.cohorts.c.head_id)
        .add_columns(sa.func.coalesce(num_bytes, 0).label("bytes"))
        .join(t.runs, t.runs.c.id == t.checkpoints.c.run_id)
        .join(t.cohorts, t.cohorts.c.id == t.checkpoints.c.cohort_id)
    )


def _checkpoint(row: sa.Row[Any]) -> Checkpoint:
    shown = {name: value for name, value in row._mapping.items() if name in Checkpoint.model_fields}
    return Checkpoint(**shown, is_head=row.head_id == row.id)
