"""Bytes that an erasure took out of use: nobody may bring them back."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.rows import listed
from coordinator.store.tables.taint import tainted

_digests: sa.BindParameter[str] = sa.bindparam("digests", expanding=True)
_MODELS = (
    sa.select(t.runs.c.federation_id, t.checkpoints.c.digest, t.checkpoints.c.superseded_by)
    .join(t.runs, t.runs.c.id == t.checkpoints.c.run_id)
    .where(t.checkpoints.c.digest.in_(_digests))
)
_PURGED = (
    sa.select(t.erasures.c.federation_id, t.artefacts.c.digest, t.artefacts.c.kind)
    .join(t.erasures, t.erasures.c.id == t.artefacts.c.erasure_id)
    .where(t.artefacts.c.digest.in_(_digests), t.artefacts.c.kind.in_(("step", "update", "history", "upload")))
)
_LEARNT = sa.select(tainted.c.federation_id, tainted.c.digest, tainted.c.is_model).where(tainted.c.digest.in_(_digests))


async def superseded(
    connection: AsyncConnection, wanted: Collection[tuple[UUID, str]], *, with_updates: bool
) -> frozenset[tuple[UUID, str]]:
    """The digests that are a model, or a step towards one, that an erasure superseded, and not also a model that is
    served: who trains on may well come to the same bytes again, and then they are clean. `with_updates`: also those
    that are an update which was purged. Another client may have sent the same; an operator has no business with
    them. What happened before this database was restored counts as well."""
    digests = listed({digest for _, digest in wanted})
    models = list(await connection.execute(_MODELS, {"digests": digests}))
    purged = await connection.execute(_PURGED, {"digests": digests})
    gone = {(row.federation_id, row.digest) for row in models if row.superseded_by is not None}
    gone |= {(row.federation_id, row.digest) for row in purged if with_updates or row.kind == "step"}
    learnt = await connection.execute(_LEARNT, {"digests": digests})
    gone |= {(row.federation_id, row.digest) for row in learnt if with_updates or row.is_model}
    served = {(row.federation_id, row.digest) for row in models if row.superseded_by is None}
    return frozenset((gone - served).intersection(wanted))
