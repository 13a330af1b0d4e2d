"""The directory of evidence against the database: tombstones, the signing key, what lies beside certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from coordinator.runtime import remedies
from coordinator.runtime.certificate_files import CertificateFiles
from coordinator.runtime.doctor.findings import Finding, Installation, some
from coordinator.runtime.signing import EvidenceLost
from coordinator.store import doctor_queries, evidence
from services.audit.artefact_list import ListInvalid, tally
from services.audit.certificate import CertificateInvalid, artefact_root
from services.audit.keys import KeyUnreadable

_LOG: Final = (
    "mount or restore the directory of evidence (LETHE_EVIDENCE_DIR); if entries are lost for good: "
    "lethe evidence accept-loss"
)


async def tombstones(installation: Installation) -> list[Finding]:
    database, log = installation.coordinator.database, installation.coordinator.tombstones
    loss = await remedies.find_loss(database, log)
    if loss is not None:
        return [Finding("tombstones-damaged" if loss.is_damaged else "tombstones-lost", loss.what, _LOG)]
    found = await asyncio.to_thread(log.contents)
    async with database.read() as connection:
        mark = await evidence.mark(connection)
        ahead = found.entries[mark.num_tombstones if mark is not None else 0 :]
        unknown = await doctor_queries.unknown_requests(connection, [entry.request_id for entry in ahead])
    what = f"the log of tombstones has {len(unknown)} erasures that this database lacks: it was restored from a backup"
    remedy = "start a coordinator: it fences them again before it serves anything"
    return [Finding("database-restored", what, remedy)] if unknown else []


async def signing_key(installation: Installation) -> list[Finding]:
    async with installation.coordinator.database.read() as connection:
        recorded = await evidence.signing_keys(connection)
        is_used = await evidence.has_certificates(connection)
    try:
        await asyncio.to_thread(installation.coordinator.signing_keys.check, recorded, is_used=is_used)
    except (EvidenceLost, KeyUnreadable) as error:
        is_there = await asyncio.to_thread(installation.coordinator.signing_keys.is_there)
        what, _, remedy = str(error).partition(": ")
        return [Finding("other-signing-key" if is_there else "missing-signing-key", what, remedy or _LOG)]
    return []


async def certificate_files(installation: Installation) -> list[Finding]:
    files = CertificateFiles(installation.coordinator.settings.evidence_path)
    async with installation.coordinator.database.read() as connection:
        certified = await doctor_queries.certificates(connection)
    lists, changed, openings, unreadable = list[str](), list[str](), list[str](), list[str]()
    for one in certified:
        try:
            root = artefact_root(one.envelope.encode())
        except CertificateInvalid:
            unreadable.append(str(one.request_id))
            continue
        if root is not None:
            path = files.list_path(one.request_id, root)
            if not path.exists():
                lists.append(str(one.request_id))
            elif installation.is_deep and not await asyncio.to_thread(_has_root, path, root):
                changed.append(str(one.request_id))
        if not one.has_salt and not files.opening_path(one.request_id).exists():
            openings.append(str(one.request_id))
    remedy = "restore the directory of evidence from its backup: lethe restore --keys DIR"
    said = {
        "missing-list": (lists, "certificates have no list of artefacts beside them; their signatures still hold"),
        "changed-list": (changed, "lists of artefacts are not those that their certificates were signed over"),
        "missing-opening": (openings, "certificates have no opening: nobody can check any more whom they are about"),
        "damaged-certificate": (unreadable, "certificates in the database cannot be read"),
    }
    return [Finding(name, f"{len(ids)} {what}: {some(ids)}", remedy) for name, (ids, what) in said.items() if ids]


def _has_root(path: Path, root: str) -> bool:
    try:
        with path.open("rb") as file:
            return tally(file).root == root
    except ListInvalid:
        return False
