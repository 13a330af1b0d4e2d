"""The step of a purge that empties columns."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store import warm
from coordinator.store.inventory import ErasureRecord, FoundArtefact
from coordinator.store.scrubbing.columns import SCRUBS, Scrub
from coordinator.store.scrubbing.rows import PAGE, of_runs
from coordinator.store.scrubbing.scope import ScrubScope

_EVERY_EPOCH: Final = 2**31 - 1
_SEEN: Final = frozenset({"id", "client_id", "cohort_id", "epoch", "type", "action", "made"})
"""Columns that say whose a row is."""
_AFTER_RUNS: Final = next(place for place, one in enumerate(SCRUBS) if one.column.table is t.cohorts)
"""When the cohorts of the runs are locked."""


async def scrub(
    connection: AsyncConnection, found: ErasureRecord, artefacts: Collection[FoundArtefact]
) -> list[FoundArtefact]:
    """Take out of rows what a request's clients said and what was measured of them; returns what was taken out."""
    scope = await _scope_of(connection, found, artefacts)
    salt, taken = bytes.fromhex(found.erasure.salt), list[FoundArtefact]()
    for place, one in enumerate(SCRUBS):
        if place == _AFTER_RUNS:
            for of_run in of_runs(t.cohorts.c.run_id)(scope):
                await warm.renew(connection, of_run)
        for rows in one.rows(scope):
            taken += await _scrub_column(connection, one, rows, scope, salt)
    return taken


async def requests_left_unscrubbed(connection: AsyncConnection) -> list[UUID]:
    """Requests that an older release completed without scrubbing: the client's agent is still named."""
    e, s = t.erasures.c, t.subjects.c
    statement = (
        sa.select(e.id)
        .join(t.subjects, s.erasure_id == e.id)
        .join(t.clients, t.clients.c.id == s.client_id)
        .where(e.status == "completed", e.scope == "client", e.duplicate_of.is_(None))
        .where(t.clients.c.status == "erased", t.clients.c.agent_version.is_not(None))
        .distinct()
    )
    return sorted((await connection.execute(statement)).scalars())


async def _scope_of(
    connection: AsyncConnection, found: ErasureRecord, artefacts: Collection[FoundArtefact]
) -> ScrubScope:
    client_ids = frozenset(s.client_id for s in found.subjects)
    stays = found.erasure.scope == "samples"
    if stays:  # who was erased since then has left for good, by another request
        c = t.clients.c
        active = sa.select(c.id).where(c.id.in_(client_ids), c.status != "erased")
        client_ids = frozenset((await connection.execute(active)).scalars())
    of_members = (
        sa.select(t.cohorts.c.id, t.cohorts.c.run_id, t.cohorts.c.phase)
        .join(t.members, t.members.c.cohort_id == t.cohorts.c.id)
        .where(t.members.c.client_id.in_(client_ids))
        .distinct()
    )
    cohorts = (await connection.execute(of_members)).all()
    over = {row.id: _EVERY_EPOCH for row in cohorts if row.phase == "retired" or not stays}
    x = t.checkpoints.c
    mended = sa.select(x.id, x.forgets).where(
        x.kind == "forgotten", x.cohort_id.in_([c.cohort_id for c in found.affected])
    )
    written = {str(client_id) for client_id in client_ids}
    mended_ids = [row.id for row in await connection.execute(mended) if not written.isdisjoint(row.forgets)]
    return ScrubScope(
        erasure_id=found.erasure.id,
        federation_id=found.erasure.federation_id,
        client_ids=client_ids,
        names=frozenset(s.name for s in found.subjects if s.client_id in client_ids),
        stays=stays,
        last_epochs={**over, **{one.cohort_id: one.epoch_before for one in found.affected}},
        run_ids=frozenset(row.run_id for row in cohorts) | {one.run_id for one in found.affected},
        model_ids=frozenset(a.row_id for a in artefacts if a.kind in ("checkpoint", "merge") and a.row_id is not None),
        mended_ids=frozenset(mended_ids),
        update_ids=frozenset(a.row_id for a in artefacts if a.kind == "update" and a.row_id is not None),
    )


async def _scrub_column(
    connection: AsyncConnection, one: Scrub, rows: sa.ColumnElement[bool], scope: ScrubScope, salt: bytes
) -> list[FoundArtefact]:
    """Page by page, in the order of the keys."""
    column, table, taken = one.column, one.column.table, list[FoundArtefact]()
    keys = list(table.primary_key.columns)
    shown = [c for c in table.columns if c.primary_key or c is column or c.name in _SEEN]
    change = (
        sa.update(table)
        .where(*(key == sa.bindparam(f"_{key.name}", type_=key.type) for key in keys))
        .values({column.name: sa.bindparam("_left", type_=column.type)})
    )
    after: tuple[Any, ...] | None = None
    while True:
        page = sa.select(*shown).where(rows, column.is_not(None)).order_by(*keys).limit(PAGE)
        if after is not None:
            page = page.where(sa.tuple_(*keys) > sa.tuple_(*map(sa.literal, after, (key.type for key in keys))))
        found = (await connection.execute(page)).all()
        changes = []
        for row in found:
            value = getattr(row, column.name)
            left = one.empty(value, row, scope)
            if left != value:
                key = {f"_{key.name}": getattr(row, key.name) for key in keys}
                changes.append({**key, "_left": left})
                if one.kind is not None:
                    taken.append(FoundArtefact(one.kind, _digest(salt, column, key, value), disposition="scrubbed"))
        if changes:
            await connection.execute(change, changes)
            await asyncio.sleep(0)  # SQLite answers on the event loop: others have their turn
        if len(found) < PAGE:
            return taken
        after = tuple(getattr(found[-1], key.name) for key in keys)


def _digest(salt: bytes, column: sa.Column[Any], key: dict[str, Any], value: Any) -> str:
    """The keyed digest of what was in one column of one row."""
    written = orjson.dumps([str(column), [str(part) for part in key.values()], value])
    return "sha256:" + hmac.new(salt, written, hashlib.sha256).hexdigest()
