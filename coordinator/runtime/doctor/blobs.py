"""Stored bytes against the rows that announce them, and the keys that open them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from typing import Final

from coordinator.blobs.port import Missing
from coordinator.engine.entities import Blob
from coordinator.keys.port import KeyName, KeyStore, is_of_client, is_of_cohort
from coordinator.runtime.doctor.findings import Finding, Installation, some
from coordinator.runtime.orphans import orphans, remove_orphans
from coordinator.runtime.storage import name_of
from coordinator.store import blobs, doctor_queries
from services.core.errors import Rejected
from services.sealing.segments import OVERHEAD, SEGMENT_BYTES, Unreadable

OLD_PARTS: Final = "parts"
"""Where an older version kept unfinished uploads; nobody looks there any more."""
TELL_EVERY: Final = 1000
_BACKUP: Final = "restore these files from the last backup of the blobs; what is in none is lost: start the run again"
_KEYS: Final = "restore the keys from their backup (docs/operations.md): lethe restore --keys DIR"
FAULTS: Final = {
    "missing-bytes": ("blobs have no bytes in the store", _BACKUP),
    "truncated-bytes": ("blobs have not as many bytes as they had when they were stored", _BACKUP),
    "changed-bytes": ("blobs have other bytes than when they were stored", _BACKUP),
    "missing-key": ("blobs are sealed under a key that is not there", _KEYS),
    "erased-keys": (
        "blobs came back with a backup from before an erasure, and are sealed under keys that it destroyed",
        "nobody can read them any more, as it should be; a run that needs one of them says so: start it again",
    ),
    "other-key": ("blobs are sealed under a key that is another one now", _KEYS),
}


async def orphaned(installation: Installation) -> list[Finding]:
    """Bytes that no row announces, however new. They are listed first and looked up then."""
    number = num_bytes = 0
    async for one in orphans(installation.coordinator.database, installation.coordinator.blobs):
        number, num_bytes = number + 1, num_bytes + one.num_bytes
    what = f"{number} stored objects ({num_bytes} bytes) are announced by no row"
    return [Finding("orphan-bytes", what, "lethe doctor --repair deletes them")] if number else []


async def delete_orphans(installation: Installation) -> None:
    await remove_orphans(installation.coordinator.database, installation.coordinator.blobs, also_of_strangers=True)


async def old_parts(installation: Installation) -> list[Finding]:
    settings = installation.coordinator.settings
    parts = settings.blob_path / OLD_PARTS
    found = [path for path in parts.rglob("*") if path.is_file()] if settings.blobs == "file" else []
    what = f"{len(found)} unfinished uploads of an older version lie in {parts}"
    return [Finding("old-parts", what, "lethe doctor --repair deletes them")] if found else []


async def delete_old_parts(installation: Installation) -> None:
    shutil.rmtree(installation.coordinator.settings.blob_path / OLD_PARTS)


async def stored(installation: Installation) -> list[Finding]:
    """Each blob's bytes and keys. What seems wrong is looked at again with its row as it is then: it may have been
    deleted, sealed or wrapped anew meanwhile."""
    wrong: dict[str, list[str]] = {}
    after, number = None, 0
    while True:
        async with installation.coordinator.database.read() as connection:
            page = await doctor_queries.sealed_or_stored(connection, after)
        for blob in page:
            if (fault := await _fault(installation, blob)) is not None and (
                fault := await _fault_again(installation, blob)
            ):
                wrong.setdefault(fault, []).append(str(blob.id))
            number += 1
            if number % TELL_EVERY == 0:
                installation.say(f"{number} blobs looked at")
        if len(page) < doctor_queries.PAGE:
            break
        after = page[-1].id
    return [
        Finding(name, f"{len(ids)} {FAULTS[name][0]}: {some(ids)}", FAULTS[name][1], is_fault=name != "erased-keys")
        for name, ids in wrong.items()
    ]


async def _fault_again(installation: Installation, blob: Blob) -> str | None:
    async with installation.coordinator.database.read() as connection:
        found = await blobs.by_id(connection, [blob.id])
    return await _fault(installation, found[0]) if found and found[0].status != "dropping" else None


async def _fault(installation: Installation, blob: Blob) -> str | None:
    if not blob.is_plain and (fault := await _fault_of_keys(installation, blob)) is not None:
        return fault
    if blob.status != "stored":
        return None  # it is on its way
    size = await installation.coordinator.blobs.size(blob.federation_id, name_of(blob))
    if size is None:
        return "missing-bytes"
    if not _fits(blob, size):
        return "truncated-bytes"
    return await _fault_of_bytes(installation, blob) if installation.is_deep else None


async def _fault_of_keys(installation: Installation, blob: Blob) -> str | None:
    sealer = installation.coordinator.sealer
    names = [name for name in (blob.key_name, blob.client_key_name) if name is not None]
    if lost := {name for name in names if sealer.keys.find(name) is None}:
        return "erased-keys" if lost <= await _destroyed(installation, lost) else "missing-key"
    try:
        await sealer.data_key(blob)
    except Rejected:
        return "other-key"
    return None


def _fits(blob: Blob, size: int) -> bool:
    """Each segment is so much longer than its plaintext; there may be more of them than necessary."""
    if blob.is_plain:
        return size == blob.num_bytes
    fewest = -(-blob.num_bytes // SEGMENT_BYTES)
    num_segments, rest = divmod(size - blob.num_bytes, OVERHEAD)
    return not rest and fewest <= num_segments <= max(blob.num_bytes, fewest)


async def _fault_of_bytes(installation: Installation, blob: Blob) -> str | None:
    found = hashlib.sha256()
    try:
        async for piece in installation.coordinator.storage.pieces(blob):
            found.update(piece)
    except (Unreadable, Missing, Rejected):
        return "changed-bytes"
    return None if blob.digest == f"sha256:{found.hexdigest()}" else "changed-bytes"


# --- keys that must not be there --------------------------------------------------------------------------------------


async def outlived_keys(installation: Installation) -> list[Finding]:
    found = sorted(await _outlived(installation))
    what = f"{len(found)} keys that completed erasures must have destroyed are still there: {some(found)}"
    remedy = (
        "lethe doctor --repair destroys them; if they came back with a copy of the directory of evidence, destroy them "
        "there, too: lethe backup --keys DIR"
    )
    return [Finding("outlived-keys", what, remedy)] if found else []


async def destroy_outlived_keys(installation: Installation) -> None:
    _keys(installation).destroy(await _outlived(installation))


async def _outlived(installation: Installation) -> set[KeyName]:
    return await _destroyed(installation, _keys(installation).names())


async def _destroyed(installation: Installation, names: Collection[KeyName]) -> set[KeyName]:
    """The keys that completed erasures destroyed: of clients who left, and of epochs before a cut."""
    async with installation.coordinator.database.read() as connection:
        clients, epochs = await doctor_queries.erased_clients(connection), await doctor_queries.ended_epochs(connection)
        gone = {name for name in names if any(is_of_client(name, one) for one in clients)}
        for cohort_id, epoch in epochs.items():
            own = {name: name.rpartition(".")[2] for name in names if is_of_cohort(name, cohort_id)}
            gone |= {name for name, number in own.items() if number.isdecimal() and int(number) <= epoch}
        return gone


def _keys(installation: Installation) -> KeyStore:
    return installation.coordinator.sealer.keys
