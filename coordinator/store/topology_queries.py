"""A run as a picture: its cohorts with members, served models and fences, in a handful of statements. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from services.core.errors import Rejected
from services.core.model_figures import accuracy_of
from services.topology.cohorts import cluster_index
from services.topology.knot import Anchors
from services.wire.v1.views import Anchor, CohortFence, Place, Plane, RunTopology, TopologyCohort, TopologyMember


async def topology(connection: AsyncConnection, run_id: UUID, within: UUID | None, most_members: int) -> RunTopology:
    """`most_members`: of each cohort."""
    r, c = t.runs.c, t.cohorts.c
    statement = sa.select(r.version, r.spec).where(r.id == run_id)
    run = (
        await connection.execute(statement if within is None else statement.where(r.federation_id == within))
    ).first()
    if run is None:
        raise Rejected("not-found", f"there is no run {run_id}")
    shown = (c.id, c.name, c.kind, c.parent_id, c.group, c.epoch, c.round, c.phase, c.num_members, c.head_id)
    heads = (
        sa.select(*shown, c.head_digest, t.checkpoints.c.metrics)
        .outerjoin(t.checkpoints, t.checkpoints.c.id == c.head_id)
        .where(c.run_id == run_id)
        .order_by(c.id)
    )
    rows = (await connection.execute(heads)).all()
    members = await _members(connection, run_id, most_members) if most_members else {}
    fences = await _fences(connection, run_id)
    hidden = await named_after_the_erased(connection, run_id)
    topology = run.spec["topology"]
    anchors = await _anchors(connection, run_id) if topology["kind"] == "clusters" else None
    return RunTopology(
        run_id=run_id,
        kind=topology["kind"],
        version=run.version,
        cohorts=[
            _cohort(row, members.get(row.id, []), fences.get(row.id, []), row.id in hidden, anchors) for row in rows
        ],
        plane=None if anchors is None else _plane(anchors),
    )


async def named_after_the_erased(connection: AsyncConnection, run_id: UUID) -> set[UUID]:
    """Cohorts that had one client, whose name they have, and which was erased."""
    c, m = t.cohorts.c, t.members.c
    is_erased = sa.exists().where(m.cohort_id == c.id, t.clients.c.id == m.client_id, t.clients.c.status == "erased")
    has_others = sa.exists().where(m.cohort_id == c.id, m.active)
    own = sa.select(c.id).where(c.run_id == run_id, c.kind.in_(("leaf", "profile")), is_erased, ~has_others)
    return set((await connection.execute(own)).scalars())


async def _members(connection: AsyncConnection, run_id: UUID, most: int) -> dict[UUID, list[TopologyMember]]:
    m = t.members.c
    place = sa.func.row_number().over(partition_by=m.cohort_id, order_by=m.name).label("place")
    of_run = (
        sa.select(m.cohort_id, m.client_id, m.name, m.joined, place)
        .join(t.cohorts, t.cohorts.c.id == m.cohort_id)
        .where(t.cohorts.c.run_id == run_id, m.active)
        .subquery()
    )
    found: dict[UUID, list[TopologyMember]] = defaultdict(list)
    statement = sa.select(of_run).where(of_run.c.place <= most).order_by(of_run.c.cohort_id, of_run.c.place)
    for row in await connection.execute(statement):
        found[row.cohort_id].append(TopologyMember(client_id=row.client_id, name=row.name, joined=row.joined))
    return found


async def _fences(connection: AsyncConnection, run_id: UUID) -> dict[UUID, list[CohortFence]]:
    x = t.lines.c
    statement = (
        sa.select(x.cohort_id, x.erasure_id, t.erasures.c.fenced_at, x.epoch_after, x.action)
        .join(t.erasures, t.erasures.c.id == x.erasure_id)
        .join(t.cohorts, t.cohorts.c.id == x.cohort_id)
        .where(t.cohorts.c.run_id == run_id)
        .order_by(x.epoch_after)
    )
    found: dict[UUID, list[CohortFence]] = defaultdict(list)
    for row in await connection.execute(statement):
        is_new = row.action == "re-initialised"
        fence = CohortFence(erasure_id=row.erasure_id, at=row.fenced_at, epoch=row.epoch_after, reinitialised=is_new)
        found[row.cohort_id].append(fence)
    return found


async def _anchors(connection: AsyncConnection, run_id: UUID) -> Anchors | None:
    """What the clusters were made around, if they were made by measuring."""
    c = t.cohorts.c
    profiles = sa.select(c.program_state).where(c.run_id == run_id, c.kind == "profile").order_by(c.id)
    for state in (await connection.execute(profiles)).scalars():
        figures: Mapping[str, float] = (state or {}).get("figures") or {}
        if "anchor_time:0" in figures:
            return Anchors.from_figures(figures)
    return None


def _cohort(
    row: Any,
    members: Collection[TopologyMember],
    fences: list[CohortFence],
    is_hidden: bool,
    anchors: Anchors | None,
) -> TopologyCohort:
    return TopologyCohort(
        id=row.id,
        name=None if is_hidden else row.name,
        kind=row.kind,
        parent_id=row.parent_id,
        group=None if is_hidden and row.group == row.name else row.group,
        epoch=row.epoch,
        round=row.round,
        phase=row.phase,
        num_members=row.num_members,
        members=list(members),
        members_left_off=max(0, row.num_members - len(members)),
        head=row.head_id,
        head_digest=row.head_digest,
        accuracy=accuracy_of(row.metrics or {}),
        fences=fences,
        place=None if anchors is None or row.kind in ("profile", "merge") else _place(anchors, row.group),
    )


def _place(anchors: Anchors, group: str) -> Place:
    index = cluster_index(group)
    return Place(time=anchors.times[index], disparity=anchors.disparities[index])


def _plane(anchors: Anchors) -> Plane:
    places = enumerate(zip(anchors.times, anchors.disparities, strict=True))
    return Plane(
        anchors=[Anchor(cluster=index, time=time, disparity=disparity) for index, (time, disparity) in places],
        time_range=list(anchors.time_range),
        disparity_range=list(anchors.disparity_range),
    )
