"""Lineage as a graph: the checkpoints behind one, and what went into each. Reads only."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from services.wire.v1.views import LineageEdge, LineageEdges, LineageNode

MOST_NODES: Final = 1000
MOST_EDGES: Final = 10_000


async def edges(connection: AsyncConnection, checkpoint_id: UUID, depth: int, client_id: UUID | None) -> LineageEdges:
    """Up to so many steps back. `client_id`: only this client's updates."""
    nodes, is_cut = await _nodes(connection, checkpoint_id, depth)
    ids = [node.checkpoint_id for node in nodes]
    updates, num_left_off = await _updates(connection, ids, client_id)
    return LineageEdges(
        checkpoint_id=checkpoint_id,
        nodes=nodes,
        edges=[*await _parents(connection, ids), *updates],
        nodes_left_off=is_cut,
        edges_left_off=num_left_off,
    )


async def _nodes(connection: AsyncConnection, checkpoint_id: UUID, depth: int) -> tuple[list[LineageNode], bool]:
    """Nearest first, and whether there are more. As far as a model is shown to descend from others (see `lineage`)."""
    c, p = t.checkpoints.c, t.parents.c
    start = sa.select(c.id, sa.literal(0).label("depth")).where(c.id == checkpoint_id)
    walk = start.cte("walk", recursive=True)
    above = sa.union_all(
        sa.select(c.id.label("child"), c.base_id.label("above")).where(c.base_id.is_not(None), c.kind == "aggregate"),
        sa.select(p.checkpoint_id.label("child"), p.parent_id.label("above")),
    ).subquery()
    step = sa.select(above.c.above, walk.c.depth + 1).join(walk, above.c.child == walk.c.id)
    walk = walk.union(step.where(walk.c.depth <= depth))
    nearest = sa.select(walk.c.id, sa.func.min(walk.c.depth).label("depth")).group_by(walk.c.id).subquery()
    shown = (c.id.label("checkpoint_id"), c.cohort_id, c.epoch, c.round, c.kind, c.superseded_by, nearest.c.depth)
    statement = (
        sa.select(*shown)
        .join(nearest, nearest.c.id == c.id)
        .order_by(nearest.c.depth, c.id.desc())
        .limit(MOST_NODES + 1)
    )
    found = [LineageNode(**row._mapping) for row in await connection.execute(statement)]
    within = [node for node in found[:MOST_NODES] if node.depth <= depth]
    return within, len(within) < len(found)


async def _parents(connection: AsyncConnection, ids: list[UUID]) -> list[LineageEdge]:
    c, p = t.checkpoints.c, t.parents.c
    bases = sa.select(c.base_id, c.id).where(c.id.in_(ids), c.base_id.in_(ids)).order_by(c.id.desc())
    models = sa.select(p.parent_id, p.checkpoint_id, p.weight).where(p.checkpoint_id.in_(ids), p.parent_id.in_(ids))
    of_bases = await connection.execute(bases)
    of_models = await connection.execute(models.order_by(p.checkpoint_id.desc(), p.position))
    return [
        *(_edge(row.base_id, row.id) for row in of_bases),
        *(_edge(row.parent_id, row.checkpoint_id, weight=row.weight) for row in of_models),
    ]


async def _updates(
    connection: AsyncConnection, ids: list[UUID], client_id: UUID | None
) -> tuple[list[LineageEdge], int]:
    """The updates in these models, and how many are not listed."""
    x, u = t.contributions.c, t.updates.c
    own = x.checkpoint_id.in_(ids) if client_id is None else x.checkpoint_id.in_(ids) & (x.client_id == client_id)
    statement = (
        sa.select(x.update_id, x.checkpoint_id, x.client_id, x.weight, u.num_samples)
        .join(t.updates, u.id == x.update_id)
        .where(own)
        .order_by(x.checkpoint_id.desc(), x.position)
        .limit(MOST_EDGES)
    )
    rows = (await connection.execute(statement)).all()
    total = len(rows)
    if total == MOST_EDGES:
        counting = sa.select(sa.func.count()).select_from(t.contributions).where(own)
        total = (await connection.execute(counting)).scalar_one()
    found = [
        _edge(row.update_id, row.checkpoint_id, "update", row.client_id, row.weight, row.num_samples) for row in rows
    ]
    return found, total - len(found)


def _edge(
    from_: UUID,
    to: UUID,
    kind: Any = "parent",
    client_id: UUID | None = None,
    weight: float | None = None,
    num_samples: int | None = None,
) -> LineageEdge:
    begin: dict[str, Any] = {"from": from_}
    return LineageEdge(**begin, to=to, kind=kind, client_id=client_id, weight=weight, num_samples=num_samples)
