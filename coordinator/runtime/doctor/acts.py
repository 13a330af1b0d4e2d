"""The log of acts against the heads that were signed of it."""

from __future__ import annotations

from typing import Final

from coordinator.runtime.doctor.findings import Finding, Installation, some
from coordinator.store import acts as rows
from coordinator.store.paging import Position
from services.audit.acts import ActsInvalid, follow, read_head
from services.wire.v1.acts import ActEntry

_AT_ONCE: Final = 500


async def acts(site: Installation) -> list[Finding]:
    """What seems wrong is looked at again: it may have been linked or pruned meanwhile."""
    broken = await _broken(site)
    if broken:
        await site.wait()
        broken = {one: why for one, why in (await _broken(site)).items() if one in broken}
    what = f"entries of {len(broken)} logs of acts are not those that were signed: {some(list(broken.values()))}"
    remedy = "somebody wrote to the database: compare it with an earlier export (lethe verify) or a backup"
    return [Finding("acts-changed", what, remedy)] if broken else []


async def _broken(site: Installation) -> dict[str, str]:
    """Why, by federation."""
    async with site.coordinator.database.read() as connection:
        chains = await rows.chains(connection)
    found = {}
    for chain in chains:
        if chain.head is None:
            continue
        try:
            head = read_head(chain.head.encode())
            entries = await _entries(site, chain)
            follow((one for one in entries if one.seq <= head.seq), head)
        except ActsInvalid as invalid:
            found[str(chain.federation_id)] = f"{chain.federation_id}: {invalid}"
    return found


async def _entries(site: Installation, chain: rows.Chain) -> list[ActEntry]:
    entries: list[ActEntry] = []
    position = Position(_AT_ONCE)
    while True:
        async with site.coordinator.database.read() as connection:
            page = await rows.acts(connection, chain.federation_id, position)
        entries += [act.entry for act in page.items]
        if page.next_cursor is None:
            return entries
        position = Position(_AT_ONCE, page.next_cursor)
