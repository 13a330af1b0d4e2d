"""Whether the directory of evidence can be written: tombstones, the key that signs certificates.

Without it no client can be fenced and no certificate signed, so a coordinator that cannot write there is not ready.
What waits for it goes on as soon as it can be written again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from coordinator.bus.port import Bus
from coordinator.engine.react import CHORES, EVIDENCE, HISTORY
from coordinator.runtime.supervision import Pulse
from coordinator.store import outbox
from coordinator.store.database import Database, Unavailable
from coordinator.tombstones.port import LogCorrupt, TombstoneLog
from services.audit.keys import KeyUnreadable, load_key

log = structlog.get_logger()
LOOK_EVERY_S: Final = 10.0
LOOK_AGAIN_S: Final = 1.0
TROUBLE: Final = (OSError, LogCorrupt, KeyUnreadable)
"""What a directory of evidence can fail with."""
STEPS: Final = ("fence", "purge", "keep-updates")
"""Jobs that write there: tombstones, certificates, the keys of sealed histories."""


class Evidence:
    def __init__(self, database: Database, bus: Bus, tombstones: TombstoneLog, key_path: Path) -> None:
        self._database, self._bus, self._tombstones, self._key_path = database, bus, tombstones, key_path

    async def watch(self, pulse: Pulse) -> None:
        """Look now and then, and whenever a step failed."""
        with self._bus.waiter(EVIDENCE) as waiter:
            while True:
                was_well = pulse.problem is None
                try:
                    await asyncio.to_thread(self._probe)
                    if not was_well:
                        await self._hurry()
                    pulse.beat()
                except TROUBLE as error:
                    if was_well:
                        log.error("evidence.unusable", exc_info=error)
                    pulse.waits(described(error))
                except Unavailable:  # it will be told of the room next time
                    log.warning("evidence.waits")
                await waiter.wait(LOOK_EVERY_S if pulse.problem is None else LOOK_AGAIN_S)

    def _probe(self) -> None:
        self._tombstones.probe()
        if self._key_path.exists():
            load_key(self._key_path)

    async def _hurry(self) -> None:
        async with self._database.write() as connection:
            await outbox.hurry_jobs(connection, STEPS, await self._database.now(connection))
        self._bus.wake([CHORES, HISTORY])
        log.info("evidence.usable")


def described(error: BaseException) -> str:
    """Without paths: requesters read it, too."""
    match error:
        case OSError(strerror=str() as why):
            what = why
        case LogCorrupt():
            what = str(error)
        case _:
            what = "the signing key cannot be read"
    return f"the directory of evidence cannot be used: {what}"
