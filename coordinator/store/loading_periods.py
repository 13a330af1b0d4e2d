"""Loads what a period is decided from, where a federation divides its clients among jobs."""

from __future__ import annotations

import sqlalchemy as sa

from coordinator.engine.entities import AffectedCohort, Client, Erasure, Federation, Measured, Period
from coordinator.store import tables as t
from coordinator.store.loading import Loading


async def widen_to_open_runs(loading: Loading) -> None:
    """Need also the open runs of federations whose clients are divided anew: these have, or are given, an
    allocation."""
    keys, governed, f = loading.needs.allocating, loading.needs.governed, t.federations.c
    if not keys and not governed:
        return
    of_runs = sa.select(t.runs.c.federation_id).where(t.runs.c.id.in_(keys))
    of_requests = sa.select(t.erasures.c.federation_id).where(t.erasures.c.id.in_(keys))
    concerned = f.id.in_(keys) | f.id.in_(of_runs) | f.id.in_(of_requests)
    found = await loading.add(Federation, concerned & f.allocation.is_not(None) | f.id.in_(governed))
    if found:
        r = t.runs.c
        own = r.federation_id.in_([one.id for one in found]) & r.status.in_(("running", "paused"))
        loading.needs.runs |= set((await loading.connection.execute(sa.select(r.id).where(own))).scalars())


async def load_figures(loading: Loading) -> None:
    """The clients with what was measured of them, the requests that are not done, and the newest period."""
    federation_ids = list(loading.state.rows("federations"))
    if not federation_ids:
        return
    await loading.add(Client, t.clients.c.federation_id.in_(federation_ids))
    is_undone = t.lines.c.done_at.is_(None) & t.lines.c.run_id.in_(loading.needs.runs)
    undone = await loading.add(AffectedCohort, is_undone)
    await loading.add(Erasure, t.erasures.c.id.in_({one.erasure_id for one in undone}))
    p = t.periods.c
    newest = sa.select(sa.func.max(p.number)).where(p.federation_id == t.federations.c.id).scalar_subquery()
    of_each = sa.select(t.federations.c.id, newest).where(t.federations.c.id.in_(federation_ids))
    await loading.add(Period, sa.tuple_(p.federation_id, p.number).in_(of_each))
    await _measure(loading, sa.select(t.clients.c.id).where(t.clients.c.federation_id.in_(federation_ids)))


async def _measure(loading: Loading, clients: sa.Select[tuple[object]]) -> None:
    u, b = t.updates.c, t.blobs.c
    trained = (
        sa.select(u.client_id, sa.func.max(u.num_samples).label("samples"), sa.func.avg(u.seconds).label("seconds"))
        .where(u.client_id.in_(clients), u.kind == "train")
        .group_by(u.client_id)
    )
    sent = (
        sa.select(b.client_id, sa.func.avg(b.num_bytes).label("num_bytes"))
        .where(b.client_id.in_(clients), b.origin == "task", b.status == "stored")
        .group_by(b.client_id)
    )
    sizes = {row.client_id: float(row.num_bytes) for row in await loading.connection.execute(sent)}
    found = {
        row.client_id: Measured(int(row.samples), float(row.seconds), sizes.get(row.client_id, 0.0))
        for row in await loading.connection.execute(trained)
    }
    loading.note({"measures": found})
