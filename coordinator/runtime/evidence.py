"""Whether the directory of evidence can be written, and goes together with the database: tombstones, the signing key.

Without it no client can be fenced and no certificate signed, so a coordinator that cannot write there is not ready.
What waits for it goes on as soon as it can be written again. While the database may be older than the tombstones, or
the evidence lacks what the database knows, the database's gate is shut and nothing is served.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from coordinator.bus.port import Bus
from coordinator.engine.react import CHORES, EVIDENCE, HISTORY
from coordinator.runtime.evidence_comparison import EvidenceComparison, Known
from coordinator.runtime.signing import EvidenceLost, SigningKeys
from coordinator.runtime.supervision import WorkHealth
from coordinator.store import evidence, outbox, schema
from coordinator.store.database import Database, Unavailable
from coordinator.store.gate import Mark
from coordinator.tombstones.port import LogCorrupt, TombstoneLog
from services.audit.keys import KeyUnreadable

log = structlog.get_logger()
LOOK_EVERY_S: Final = 2.0
LOOK_AGAIN_S: Final = 1.0
LOOK_SOON_S: Final = 0.2
"""While everybody waits for a comparison that the database could not serve."""
PROBE_EVERY: Final = 5
"""Looks, unless something is wrong: a probe writes to the disk."""
TROUBLE: Final = (OSError, LogCorrupt, KeyUnreadable, EvidenceLost)
"""What a directory of evidence can fail with."""
STEPS: Final = ("fence", "purge", "keep-updates")
"""Jobs that write there: tombstones, certificates, the keys of sealed histories."""


class Evidence:
    def __init__(
        self, database: Database, bus: Bus, tombstones: TombstoneLog, keys: SigningKeys, comparison: EvidenceComparison
    ) -> None:
        self._database, self._bus, self._tombstones, self._keys = database, bus, tombstones, keys
        self._comparison = comparison
        self._known: Known | None = None

    async def open(self) -> None:
        """Before anything is served: compare, and from now on ask every connection. Raises what `compare` raises."""
        self._known = await self._comparison.compare(is_serving=False)
        self._database.gate.watch(self._is_current, lambda: self._bus.wake([EVIDENCE]))

    async def watch(self, health: WorkHealth) -> None:
        """Look now and then, whenever a step failed, after each fence, and when a connection leads elsewhere."""
        num_looks, is_woken = 0, False
        with self._bus.waiter(EVIDENCE) as waiter:
            while True:
                was_well = health.problem is None
                try:
                    await self.look()
                    if is_woken or not was_well or num_looks % PROBE_EVERY == 0:
                        await asyncio.to_thread(self._probe)
                    if not was_well:
                        await self._hurry()
                    health.ok()
                except TROUBLE as error:
                    if was_well:
                        log.error("evidence.unusable", exc_info=error)
                    health.waits(described(error))
                except Unavailable:  # it will be told of the room next time
                    log.warning("evidence.waits")
                num_looks += 1
                is_woken = await waiter.wait(self._pause_s(health))

    def _pause_s(self, health: WorkHealth) -> float:
        if health.problem is not None:
            return LOOK_AGAIN_S
        return LOOK_EVERY_S if self._database.gate.is_open else LOOK_SOON_S

    async def look(self) -> None:
        """Compare database and evidence if either changed. Opens the gate when they go together, and shuts it when the
        database has fallen behind or the evidence lacks what it knows."""
        gate = self._database.gate
        if self._database.was_replaced():
            gate.shut()
        try:
            if gate.is_open and not await self._has_changed():
                return
            generation, before = gate.generation, self._known
            self._known = await self._comparison.compare(is_serving=gate.is_open)
        except (EvidenceLost, LogCorrupt) as error:
            gate.shut(described(error))
            raise
        except (OSError, KeyUnreadable) as error:
            if not gate.is_open:
                gate.shut(described(error))
            raise
        except Unavailable:
            raise
        except Exception as error:
            if (fault := await self._schema_fault()) is None:
                raise
            gate.shut(fault)
            raise EvidenceLost(fault) from error
        if gate.generation == generation:
            gate.open()
        if self._known.is_whole and (before is None or before.mark != self._known.mark):
            gate.renew()

    async def _has_changed(self) -> bool:
        async with self._database.past_the_gate().read() as connection:
            mark = await evidence.mark(connection)
        known = self._known
        if known is None or _is_behind(mark, known.mark):
            self._database.gate.shut()
            return True
        if not known.is_whole:
            return True
        stamps = await asyncio.to_thread(lambda: (self._tombstones.stamp(), self._keys.stamp()))
        return mark != known.mark or stamps != (known.log, known.key)

    def _is_current(self, mark: Mark | None) -> bool:
        """Whether a connection with this mark leads to a database that has fenced all that the log has. While the
        directory is away, as far as is known: nothing can have been fenced since."""
        if self._known is None or mark != self._known.mark:
            return False
        try:
            return self._tombstones.stamp() == self._known.log
        except OSError:
            return self._known.is_whole

    async def _schema_fault(self) -> str | None:
        """What hinders the comparison may be that the database has an older schema."""
        try:
            fault = await schema.fault(self._database.past_the_gate())
        except Unavailable:
            return None
        return None if fault is None else f"{fault.reason}: {fault.next_step}"

    def _probe(self) -> None:
        self._tombstones.probe()
        self._keys.load()

    async def _hurry(self) -> None:
        async with self._database.write() as connection:
            await outbox.hurry_jobs(connection, STEPS, await self._database.now(connection))
        self._bus.wake([CHORES, HISTORY])
        log.info("evidence.usable")


def described(error: BaseException) -> str:
    """The error in words without paths: requesters read them, too."""
    match error:
        case EvidenceLost():
            return str(error)
        case OSError(strerror=str() as why):
            what = why
        case LogCorrupt():
            what = f"{error}: restore the log; if entries are lost for good, `lethe evidence accept-loss`"
        case _:
            what = "the signing key cannot be read: restore it; if it is lost for good, `lethe keys rotate --lost`"
    return f"the directory of evidence cannot be used: {what}"


def _is_behind(mark: Mark | None, known: Mark) -> bool:
    if mark is None or mark.num_tombstones < known.num_tombstones:
        return True
    return mark.num_tombstones == known.num_tombstones and mark.digest != known.digest
