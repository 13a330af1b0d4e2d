"""What an operator confirms when evidence is lost: entries of the log of tombstones, or the signing key.

Both are recorded as incidents, which later certificates tell. Coordinators that run meanwhile notice by themselves.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.runtime.evidence_comparison import ROTATED, check
from coordinator.runtime.filing import tombstone_of
from coordinator.runtime.signing import EvidenceLost, SigningKeys
from coordinator.store import evidence, inventory, taint
from coordinator.store.database import Database
from coordinator.store.evidence import Incident, SigningKey
from coordinator.store.gate import Mark
from coordinator.tombstones.port import Contents, LogCorrupt, TombstoneLog
from coordinator.tombstones.taint_lists import TaintLists
from services.core.ids import uuid7

LOCAL_OPERATOR: Final = "local operator"
TOMBSTONES_LOST: Final = "tombstones-lost"
KEY_LOST: Final = "signing-key-lost"


class NotNeeded(Exception):
    """There is nothing that this remedy is for; says what to do instead."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is wrong with the log, and which fences of the database it lacks."""

    what: str
    lacking: tuple[UUID, ...]
    is_damaged: bool = False
    """It cannot be read to its end."""


async def find_loss(database: Database, tombstones: TombstoneLog) -> Loss | None:
    """None: the log has all that the database knows."""
    async with database.read() as connection:
        mark = await evidence.mark(connection)
        fenced = await evidence.fenced_requests(connection)
    try:
        found = await asyncio.to_thread(tombstones.contents)
    except LogCorrupt as error:
        return Loss(f"The log of tombstones is damaged: {error}.", tuple(fenced), is_damaged=True)
    known = {entry.request_id for entry in found.entries}
    lacking = tuple(one for one in fenced if one not in known)
    what = _what_is_wrong(found, mark)
    if what is None and mark is None and lacking:
        what = f"The log of tombstones lacks {len(lacking)} of the erasures that the database knows of."
    return None if what is None else Loss(what, lacking)


async def accept_loss(
    database: Database, tombstones: TombstoneLog, lists: TaintLists, reported_by: str = LOCAL_OPERATOR
) -> Incident:
    """Go on with what is left of the log. What the database knows of the lost entries is written to it again, and to
    the lists beside it of what was taken out of use."""
    loss = await find_loss(database, tombstones)
    if loss is None:
        raise NotNeeded("the log of tombstones has all that the database knows of: nothing is lost")
    if loss.is_damaged:
        await asyncio.to_thread(tombstones.salvage)
    known = {entry.request_id for entry in (await asyncio.to_thread(tombstones.contents)).entries}
    async with database.read() as connection:
        lacking = [one for one in await evidence.fenced_requests(connection) if one not in known]
        fenced = [await inventory.erasure_record(connection, one) for one in lacking]
        taken = {one.erasure.id: await taint.taken_by(connection, one.erasure.id) for one in fenced}
        mark = await evidence.mark(connection)
    for one in fenced:
        cohorts = [(cut.run_id, cut.cohort_id, cut.epoch_after) for cut in one.affected]
        entry = tombstone_of(one.erasure, one.subjects, cohorts, one.erasure.fenced_at or one.erasure.created_at)
        await asyncio.to_thread(lists.add, one.erasure.id, one.erasure.federation_id, *taken[one.erasure.id])
        await asyncio.to_thread(tombstones.append, entry)
    found = await asyncio.to_thread(tombstones.contents)
    said = (
        f"{loss.what} What is missing was accepted as lost; {len(fenced)} entries were written again from the database."
    )
    async with database.write() as connection:
        now = await database.now(connection)
        # From the beginning: what the log has and the database lacks is fenced by whoever compares next.
        if not await evidence.move_mark(connection, mark, Mark(0, found.digests[0])):
            raise NotNeeded("a coordinator compared database and log meanwhile; look again: lethe evidence show")
        return await _report(connection, Incident(now, TOMBSTONES_LOST, said), reported_by)


async def rotate(
    database: Database, keys: SigningKeys, *, is_lost: bool, reported_by: str = LOCAL_OPERATOR
) -> tuple[SigningKey, Incident]:
    """A new key signs from now on. The old one's private half is destroyed; its public half stays published."""
    async with database.read() as connection:
        recorded = await evidence.signing_keys(connection)
        is_used = await evidence.has_certificates(connection)
    if not is_lost:
        recorded = await asyncio.to_thread(keys.reconcile, recorded, may_create=not is_used)
        said, kind = f"The signing key {recorded[-1].key_id} was replaced by {{}}, as planned.", ROTATED
    else:
        is_present = await asyncio.to_thread(lambda: bool(recorded) and keys.is_present(recorded[-1]))
        if is_present:
            raise NotNeeded("the signing key on record is in the directory of evidence: rotate without --lost")
        before = recorded[-1].key_id if recorded else "that signed before"
        said, kind = f"The signing key {before} was lost, and {{}} took its place.", KEY_LOST
    new = await asyncio.to_thread(keys.prepare)
    async with database.write() as connection:
        now = await database.now(connection)
        await evidence.record_signing_keys(connection, [*recorded, new], now)
        incident = await _report(connection, Incident(now, kind, said.format(new.key_id)), reported_by)
    await asyncio.to_thread(keys.reconcile, [*recorded, new], may_create=False)
    return new, incident


async def _report(connection: AsyncConnection, incident: Incident, reported_by: str) -> Incident:
    await evidence.report(connection, uuid7(incident.at, os.urandom(10)), incident, reported_by)
    return incident


def _what_is_wrong(found: Contents, mark: Mark | None) -> str | None:
    try:
        check(found, mark)
    except EvidenceLost as error:
        said = str(error).partition(":")[0]
        return f"{said[0].upper()}{said[1:]}."
    return None
