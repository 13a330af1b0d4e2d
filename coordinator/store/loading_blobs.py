"""Loads blobs that are recorded, submitted or named, and what is known of bytes."""

from __future__ import annotations

import sqlalchemy as sa

from coordinator.engine.entities import Blob, Facts
from coordinator.store import superseded
from coordinator.store import tables as t
from coordinator.store.loading import Loading
from coordinator.store.rows import listed, to_entity

_own: sa.ColumnElement[bool] = t.blobs.c.federation_id.in_(
    sa.bindparam("owners", expanding=True)
) & t.blobs.c.digest.in_(sa.bindparam("digests", expanding=True))
_FACTS = (
    sa.select(
        t.blobs.c.federation_id,
        t.blobs.c.digest,
        t.blobs.c.num_bytes,
        t.blobs.c.layout_digest,
        t.blobs.c.updatable_digest,
        t.blobs.c.finite,
    )
    .where(_own, t.blobs.c.status == "stored")
    .distinct()
)
_BLOBS = (  # locked: whoever gives one up meanwhile has done so, or finds it recorded
    sa.select(t.blobs)
    .where(t.blobs.c.id.in_(sa.bindparam("keys", expanding=True)))
    .order_by(t.blobs.c.id)
    .with_for_update()
)
_UPLOADS = (
    sa.select(t.blobs)
    .where(t.blobs.c.origin_id.in_(sa.bindparam("keys", expanding=True)), t.blobs.c.status == "stored")
    .order_by(t.blobs.c.id)
    .with_for_update(read=True, key_share=True)
)
"""Whoever is about to name a blob holds off those who would give it up; see `references`."""
_NAMED_BLOBS = (
    sa.select(t.blobs)
    .where(_own, t.blobs.c.origin != "copy", t.blobs.c.status == "stored")
    .order_by(t.blobs.c.id)
    .with_for_update(read=True, key_share=True)
)


async def load_blobs(loading: Loading) -> None:
    needs = loading.needs
    if needs.blobs:
        await loading.add_found(Blob, _BLOBS, needs.blobs)
    if needs.uploads:
        await loading.add_found(Blob, _UPLOADS, {task_id for task_id, _ in needs.uploads})
    if needs.named:
        owners, digests = {f for f, _ in needs.named}, {d for _, d in needs.named}
        rows = await loading.connection.execute(_NAMED_BLOBS, {"owners": listed(owners), "digests": listed(digests)})
        loading.merge(Blob, [to_entity(Blob, row) for row in rows])
    for wanted, with_updates in ((needs.superseded, False), (needs.named, True)):
        if wanted:
            found = await superseded.superseded(loading.connection, wanted, with_updates=with_updates)
            loading.note({"superseded": dict.fromkeys(found, True)})
    await _load_facts(loading)


async def _load_facts(loading: Loading) -> None:
    """Load the facts of the models of tasks that are handed out or answered, and of what a run names."""
    keys = set(loading.needs.named)
    for task in loading.tasks.values():
        if task.id in loading.needs.submitted or task.client_id in loading.needs.claimants:
            federation = loading.runs[task.run_id].federation_id
            keys.add((federation, task.model_digest))
            stream = loading.cohorts[task.cohort_id].stream_round_id
            if stream is not None:
                keys.add((federation, loading.rounds[stream].model_digest))
    if keys := keys - loading.state.rows("facts").keys():
        owners, digests = {f for f, _ in keys}, {d for _, d in keys}
        rows = await loading.connection.execute(_FACTS, {"owners": listed(owners), "digests": listed(digests)})
        found = {
            (row.federation_id, row.digest): Facts(row.num_bytes, row.layout_digest, row.updatable_digest, row.finite)
            for row in rows
        }
        loading.note({"facts": found})
