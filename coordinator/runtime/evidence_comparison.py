"""The database compared with the evidence outside it: the log of tombstones and the signing key.

A log that is longer than the database knows: the database was restored from an older backup, or a process died between
the tombstone and the fence. What the log has is fenced again. A log that lacks what the database knows was emptied,
shortened or replaced, and that nobody can mend by itself: `EvidenceLost`, with what to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy.exc import IntegrityError

from coordinator.bus.port import Bus
from coordinator.engine.events import Event
from coordinator.engine.messages import FenceErasure, RestoreErasure
from coordinator.runtime.filing import filing_again
from coordinator.runtime.shell import Shell
from coordinator.runtime.signing import EvidenceLost, SigningKeys
from coordinator.runtime.supervision import WorkHealth
from coordinator.store import erasure_steps, evidence, taint
from coordinator.store.database import Database, Unavailable
from coordinator.store.evidence import Incident
from coordinator.store.gate import Mark
from coordinator.tombstones.port import Contents, Stamp, Tombstone, TombstoneLog
from coordinator.tombstones.taint_lists import TAINT, TaintLists
from services.core.errors import Rejected
from services.core.ids import uuid7
from services.methods.catalogue import AUTO

log = structlog.get_logger()
ATTEMPTS: Final = 5
UNKNOWN_REQUESTER: Final = "the log of tombstones"
"""Entries of earlier releases do not say who filed."""
ROTATED: Final = "signing-key-rotated"
CALLBACKS_LOST: Final = "callbacks-lost"
UNSETTLED: Final = (-1,)
"""The stamp of a log with entries that are about to be fenced: no connection is taken for current by it."""
_UNFENCED: Final = (None, "received", "awaiting_approval")
"""The status of a request that the database does not know, or has not fenced."""
_REMEDY: Final = (
    "mount or restore the directory of evidence (LETHE_EVIDENCE_DIR); if its entries are lost for good, "
    "`lethe evidence accept-loss`"
)


@dataclass(frozen=True, slots=True)
class Known:
    """What was found to go together."""

    mark: Mark
    log: Stamp | None
    key: Stamp | None
    is_whole: bool
    """Whether all that the log has is fenced."""


class EvidenceComparison:
    def __init__(
        self,
        database: Database,
        bus: Bus,
        tombstones: TombstoneLog,
        keys: SigningKeys,
        observe: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._database, self._bus, self._observe = database.past_the_gate(), bus, observe
        self._tombstones, self._keys = tombstones, keys
        self._taint_lists = TaintLists(keys.directory / TAINT)

    async def compare(self, *, is_serving: bool) -> Known:
        """Fence again what the log has and the database lacks, and note how far the database has come. `is_serving`:
        the database is not known to have fallen behind; then an entry whose request is about to be fenced is left to
        its own job, which may take its time without holding up anybody.

        Raises `EvidenceLost`; `LogCorrupt`, `KeyUnreadable` and OSError of the directory; `Unavailable`.
        """
        for _ in range(ATTEMPTS):
            try:
                if (known := await self._try_to_compare(is_serving=is_serving)) is not None:
                    return known
            except IntegrityError as error:  # another replica did the same at the same moment
                log.info("evidence.compared-by-others", error=type(error.orig).__name__)
        raise Unavailable("other processes keep changing what is known of the evidence")

    async def _try_to_compare(self, *, is_serving: bool) -> Known | None:
        """None: others moved the mark meanwhile."""
        key_stamp = await asyncio.to_thread(self._keys.stamp)
        await self._compare_keys()
        async with self._database.read() as connection:
            mark = await evidence.mark(connection)
            fenced = await evidence.fenced_requests(connection) if mark is None else []
        found = await asyncio.to_thread(self._tombstones.contents)  # after the mark: others go on with both
        check(found, mark)
        known_requests = {entry.request_id for entry in found.entries}
        if lacking := [one for one in fenced if one not in known_requests]:
            raise EvidenceLost(
                f"the log of tombstones lacks {len(lacking)} of the erasures of this database: {_REMEDY}"
            )
        await self._learn_taint()
        first = mark.num_tombstones if mark is not None else 0
        num_fenced = first + await self._fence_again(found.entries[first:], leave_received=is_serving)
        reached = Mark(num_fenced, found.digests[num_fenced])
        if mark != reached and not await self._note(mark, reached, found.entries[first:num_fenced]):
            return None
        is_whole = num_fenced == len(found.entries)
        is_about_to_be = is_serving and not is_whole
        return Known(reached, UNSETTLED if is_about_to_be else found.stamp, key_stamp, is_whole)

    async def _learn_taint(self) -> None:
        """What the lists say of erasures that this database has no record of, or none of all that they took out of
        use: it was restored from before. From then on nobody may send it."""
        sizes = await asyncio.to_thread(self._taint_lists.sizes)
        async with self._database.read() as connection:
            known = await taint.known_sizes(connection)
        for request_id, size in sorted(sizes.items()):
            start = known.get(request_id, 0)
            said = await asyncio.to_thread(self._taint_lists.read, request_id, start) if size > start else None
            if said is None:
                continue
            async with self._database.write() as connection:
                if await taint.learn(connection, said.federation_id, said.models, said.updates):
                    await taint.note(connection, request_id, said.num_bytes)

    async def _note(self, before: Mark | None, after: Mark, entries: Sequence[Tombstone]) -> bool:
        """Move the mark, after another look at what it stands for: since the first one the database may have failed
        over, and only within one transaction is it the same. False: compare again."""
        async with self._database.write() as connection:
            for entry in entries:
                if await evidence.awaits_fence(connection, entry.request_id, entry.client_ids):
                    return False
            return await evidence.move_mark(connection, before, after)

    async def _compare_keys(self) -> None:
        async with self._database.read() as connection:
            recorded = await evidence.signing_keys(connection)
            is_used = await evidence.has_certificates(connection)
        keys = await asyncio.to_thread(self._keys.reconcile, recorded, may_create=not is_used)
        if keys == recorded:
            return
        async with self._database.write() as connection:
            now = await self._database.now(connection)
            num_new = await evidence.record_signing_keys(connection, keys, now)
            if recorded and num_new:
                said = f"The key that signs is {keys[-1].key_id} since a rotation that this database did not know of."
                incident_id = uuid7(now, os.urandom(10))
                await evidence.report(connection, incident_id, Incident(now, ROTATED, said), UNKNOWN_REQUESTER)

    async def _fence_again(self, entries: Sequence[Tombstone], *, leave_received: bool) -> int:
        """How many of the first of them are fenced. By a shell of its own: nobody else's messages are decided yet."""
        if not entries:
            return 0
        shell, unsettled, num_restored = Shell(self._database, self._bus, observe=self._observe), list[int](), 0
        drainer = asyncio.create_task(shell.forever(WorkHealth()))
        try:
            for index, entry in enumerate(entries):
                async with self._database.read() as connection:
                    status = await erasure_steps.status(connection, entry.request_id)
                if status != "received":
                    num_restored += await self._fence_one(shell, entry, status)
                elif leave_received or not await self._could_fence(shell, entry):
                    unsettled.append(index)
        finally:
            drainer.cancel()
            await asyncio.wait([drainer])  # not `await drainer`: that could not tell its cancellation from our own
        if num_restored:
            log.warning("erasures.fenced-again", count=num_restored, reason="the database is older than the tombstones")
        return unsettled[0] if unsettled else len(entries)

    async def _could_fence(self, shell: Shell, entry: Tombstone) -> bool:
        """A request whose fence breaks was never fenced. It is left to its job, which says so, and stops nobody."""
        try:
            await self._fence_one(shell, entry, "received")
        except Unavailable:
            raise
        except Exception as error:
            log.error("tombstone.not-fenced", erasure=str(entry.request_id), exc_info=error)
            return False
        return True

    async def _fence_one(self, shell: Shell, entry: Tombstone, status: str | None) -> bool:
        """Whether the database had to be told of the request."""
        if status not in _UNFENCED:
            return False
        async with self._database.read() as connection:
            names = await erasure_steps.names_to_erase(connection, list(entry.client_ids))
            samples = {
                name: list(one.samples)
                for one in entry.samples
                for name in await erasure_steps.names_to_erase(connection, [one.client_id])
            }
            now = await self._database.now(connection) + timedelta(seconds=1)
        if not names:
            return False
        if status is None:
            again = filing_again(
                entry, subjects=tuple(names), samples=samples, unknown=UNKNOWN_REQUESTER, now=now, salt=os.urandom(32)
            )
            try:
                await shell.handle(again)
            except Rejected as rejected:  # what it asked for is not installed or not stored here
                log.warning("erasure.filed-otherwise", erasure=str(entry.request_id), error=rejected.detail)
                await shell.handle(replace(again, method=AUTO, params={}, recovery=None))
            if entry.filed_as is not None and entry.filed_as.num_callbacks:
                await self._say_that_nobody_is_told(entry)
        elif status == "awaiting_approval":
            await shell.handle(RestoreErasure(entry.request_id))
        await shell.handle(FenceErasure(entry.request_id, entry.request_id))
        return status is None

    async def _say_that_nobody_is_told(self, entry: Tombstone) -> None:
        """Addresses and secrets of callbacks are in no tombstone."""
        said = f"Request {entry.request_id} goes on in a restored database, without the callbacks that it named."
        async with self._database.write() as connection:
            incident = Incident(await self._database.now(connection), CALLBACKS_LOST, said)
            await evidence.report_once(connection, entry.request_id, incident, UNKNOWN_REQUESTER)


def check(found: Contents, mark: Mark | None) -> None:
    """Raises `EvidenceLost` when the log does not have what the database knows."""
    if mark is None:
        return
    if len(found.entries) < mark.num_tombstones:
        lost = f"has {len(found.entries)} of the {mark.num_tombstones} entries that the database knows of"
        raise EvidenceLost(f"the log of tombstones {lost}: {_REMEDY}")
    if found.digests[mark.num_tombstones] != mark.digest:
        raise EvidenceLost(f"the log of tombstones is not the one that the database knows of: {_REMEDY}")
