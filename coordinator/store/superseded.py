"""Bytes that an erasure took out of use: nobody may bring them back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.rows import listed
from coordinator.store.tables.taint import tainted

_digests: sa.BindParameter[str] = sa.bindparam("digests", expanding=True)
_MODELS = (
    sa.select(
        t.runs.c.federation_id,
        t.checkpoints.c.digest,
        sa.case((t.checkpoints.c.superseded_by.is_(None), "served"), else_="model").label("kind"),
    )
    .join(t.runs, t.runs.c.id == t.checkpoints.c.run_id)
    .where(t.checkpoints.c.digest.in_(_digests))
)
_PURGED = (
    sa.select(t.erasures.c.federation_id, t.artefacts.c.digest, t.artefacts.c.kind)
    .join(t.erasures, t.erasures.c.id == t.artefacts.c.erasure_id)
    .where(t.artefacts.c.digest.in_(_digests), t.artefacts.c.kind.in_(("step", "update", "history", "upload")))
)
_LEARNT = sa.select(
    tainted.c.federation_id, tainted.c.digest, sa.case((tainted.c.is_model, "model"), else_="update").label("kind")
).where(tainted.c.digest.in_(_digests))
_KNOWN = sa.union_all(_MODELS, _PURGED, _LEARNT)
_MODEL_KINDS: Final = ("model", "step")


async def superseded(
    connection: AsyncConnection, wanted: Collection[tuple[UUID, str]], *, with_updates: bool
) -> frozenset[tuple[UUID, str]]:
    """The digests that are a model, or a step towards one, that an erasure superseded, and not also a model that is
    served: who trains on may well come to the same bytes again, and then they are clean. `with_updates`: also those
    that are an update which was purged. Another client may have sent the same; an operator has no business with
    them. What happened before this database was restored counts as well."""
    digests = listed({digest for _, digest in wanted})
    known = list(await connection.execute(_KNOWN, {"digests": digests}))
    served = {(row.federation_id, row.digest) for row in known if row.kind == "served"}
    gone = {(row.federation_id, row.digest) for row in known if with_updates or row.kind in _MODEL_KINDS}
    return frozenset((gone - served).intersection(wanted))
