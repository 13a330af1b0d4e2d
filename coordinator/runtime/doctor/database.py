"""The database itself: whether it can be read, whether its schema is this release's, rows that contradict others."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from coordinator.runtime.clockwork import ABANDONED_AFTER_S, TIDY_EVERY_S
from coordinator.runtime.doctor.findings import Finding, Installation
from coordinator.runtime.sweeping import sweep_uploads
from coordinator.store import blobs, doctor_queries, schema

ABANDONED_AFTER: Final = timedelta(seconds=ABANDONED_AFTER_S + 2 * TIDY_EVERY_S)
"""A coordinator that runs has swept it by then."""
MOST_COUNTED: Final = 1000


async def integrity(installation: Installation) -> list[Finding]:
    if not installation.coordinator.database.is_sqlite:
        return []
    said = await doctor_queries.integrity(installation.coordinator.database)
    remedy = "stop the coordinator, keep a copy of the file, and restore the last backup: lethe restore"
    return [Finding("database-integrity", f"the database's file is damaged: {said[0]}", remedy)] if said else []


async def schema_fault(installation: Installation) -> list[Finding]:
    fault = await schema.fault(installation.coordinator.database)
    return [] if fault is None else [Finding("schema", fault.reason, fault.next_step)]


async def dropping(installation: Installation) -> list[Finding]:
    """Blobs that were given up and whose bytes nobody has deleted since."""
    left = await _dropping(installation)
    if left:
        await installation.wait()
        left &= await _dropping(installation)
    what = f"{len(left)} blobs were given up and are not deleted yet"
    return [Finding("dropped-blobs", what, "lethe doctor --repair deletes them")] if left else []


async def delete_dropped(installation: Installation) -> None:
    await installation.coordinator.storage.delete_dropped()


async def abandoned(installation: Installation) -> list[Finding]:
    database = installation.coordinator.database
    async with database.read() as connection:
        before = await database.now(connection) - ABANDONED_AFTER
        found = await blobs.abandoned(connection, before, most=MOST_COUNTED)
    count = f"{len(found)}{' or more' if len(found) == MOST_COUNTED else ''}"
    what = f"{count} uploads were begun more than a day ago and never finished or submitted"
    return [Finding("abandoned-uploads", what, "lethe doctor --repair gives them up")] if found else []


async def sweep(installation: Installation) -> None:
    await sweep_uploads(installation.coordinator.database, installation.coordinator.storage, ABANDONED_AFTER)


async def rows_without_blob(installation: Installation) -> list[Finding]:
    async with installation.coordinator.database.read() as connection:
        found = await doctor_queries.without_blob(connection)
    remedy = "restore database and blobs of the same backup, or start the runs concerned again"
    return [
        Finding("rows-without-blob", f"{number} rows of {table} say that their bytes are stored, and none are", remedy)
        for table, number in found.items()
    ]


async def outlived(installation: Installation) -> list[Finding]:
    async with installation.coordinator.database.read() as connection:
        found = await doctor_queries.outlived(connection)
    what = f"{len(found)} blobs that completed erasures must have deleted are still stored: {found[0] if found else ''}"
    remedy = "report this as a bug; until it is mended do not rely on the certificates of these requests"
    return [Finding("erased-but-stored", what, remedy)] if found else []


async def plain(installation: Installation) -> list[Finding]:
    async with installation.coordinator.database.read() as connection:
        number = await doctor_queries.num_plain(connection)
    what = f"{number} blobs lie unsealed, as an older version left them"
    remedy = "let a coordinator of this release run: it seals them by and by"
    return [Finding("plain-blobs", what, remedy, is_fault=False)] if number else []


async def _dropping(installation: Installation) -> set[object]:
    async with installation.coordinator.database.read() as connection:
        return set(await doctor_queries.dropping(connection))
