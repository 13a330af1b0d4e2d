"""All checks, in their order, and what they found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coordinator.runtime.doctor import background, blobs, database, evidence, files
from coordinator.runtime.doctor.findings import Check, Finding, Installation

CHECKS: Final = (
    Check("permissions", files.permissions, files.take_rights_away, needs=()),
    Check("database-integrity", database.integrity, needs=()),
    Check("schema", database.schema_fault, needs=("database-integrity",)),
    Check("background", background.background, needs=()),
    Check("tombstones", evidence.tombstones),
    Check("signing-key", evidence.signing_key),
    Check("certificate-files", evidence.certificate_files),
    Check("dropped-blobs", database.dropping, database.delete_dropped),
    Check("abandoned-uploads", database.abandoned, database.sweep),
    Check("orphan-bytes", blobs.orphaned, blobs.delete_orphans),
    Check("old-parts", blobs.old_parts, blobs.delete_old_parts, needs=()),
    Check("stored-blobs", blobs.stored),
    Check("rows-without-blob", database.rows_without_blob),
    Check("erased-but-stored", database.outlived),
    Check("outlived-keys", blobs.outlived_keys, blobs.destroy_outlived_keys),
    Check("plain-blobs", database.plain),
    Check("scratch", files.scratch, files.sweep_scratch, needs=()),
)


@dataclass(frozen=True, slots=True)
class Report:
    left: tuple[Finding, ...]
    """What is so now."""
    mended: tuple[Finding, ...]
    looked: tuple[str, ...]
    """The names of the checks that were made."""

    @property
    def is_well(self) -> bool:
        return not any(one.is_fault for one in self.left)


async def examine(installation: Installation, *, repairs: bool = False) -> Report:
    """Raises `Unavailable` of the database and OSError of the disk: then nobody can say how it is."""
    left, mended, looked = list[Finding](), list[Finding](), list[str]()
    for check in CHECKS:
        if any(one.name in check.needs for one in left):
            continue
        installation.say(check.name)
        if (found := await check.look(installation)) is None:
            continue
        if repairs and check.mend is not None and any(one.is_fault for one in found):
            await check.mend(installation)
            after = await check.look(installation) or []
            mended += [one for one in found if one.name not in {other.name for other in after}]
            found = after
        left += found
        looked.append(check.name)
    return Report(tuple(left), tuple(mended), tuple(looked))
