"""`lethe backup` and `lethe restore`: database and blobs in one place, evidence and keys in another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.database_faults import database_asked
from lethe.failures import UNUSABLE, CommandFailed
from lethe.process import BlobStore, DatabaseUrl, Home, configure_logging, open_coordinator, settings_from
from lethe.target import AsJson, examples

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator
    from coordinator.runtime.settings import Settings

BACKUP_HELP = examples(
    "lethe backup /backups/2026-11-17",
    "lethe backup --keys /safe/lethe-keys",
    "lethe backup /backups/2026-11-17 --keys /safe/lethe-keys --home /srv/lethe",
)
RESTORE_HELP = examples("lethe restore /backups/2026-11-17", "lethe restore --keys /safe/lethe-keys")
KEYS_WARNING = (
    "keys of whoever is erased from now on stay in this copy, and make old backups readable, until it is replaced: "
    "run `lethe backup --keys` with the same directory after each erasure"
)
DIRECTORY = Annotated[Path | None, typer.Argument(metavar="DIR", help="A new directory for database and blobs.")]
KEYS = Annotated[
    Path | None, typer.Option("--keys", metavar="DIR", help="The one copy of the directory of evidence, kept apart.")
]


def backup(
    directory: DIRECTORY = None,
    keys: KEYS = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    blobs: BlobStore = None,
    json: AsJson = False,
) -> None:
    """Copy database and blobs to DIR, without keys; and with --keys the directory of evidence to another place.

    Run it where the coordinator runs, with its settings, also while it runs. The copy of the keys replaces the one
    before, of which nothing is left: what was erased stays erased only if no older copy of the keys is kept.
    """
    from lethe.printing import print_record, say

    settings = settings_from(home=home, database_url=database_url, blobs=blobs)
    _refuse_nothing(directory, keys)
    _refuse_within(directory, keys, settings)
    configure_logging(as_json=settings.log_json)
    said: dict[str, Any] = {}

    async def save(coordinator: Coordinator) -> None:
        from coordinator.runtime.backup import keys as of_keys
        from coordinator.runtime.backup import saving

        if directory is not None:
            said["backup"] = (await saving.save(coordinator, directory, say)).model_dump(exclude_none=True)
        if keys is not None:  # last: a key that a row of the backup needs is there, or was destroyed for good
            made = await asyncio.to_thread(of_keys.save, settings.evidence_path, keys, datetime.now(UTC))
            said["keys"] = made.model_dump(exclude_none=True)

    asyncio.run(_carried_out(settings, save))
    print_record(said, as_json=json)
    if said.get("backup", {}).get("num_missing_blobs"):
        say(f"{said['backup']['num_missing_blobs']} blobs have no bytes and are not in the backup: lethe doctor")
    if keys is not None:
        say(KEYS_WARNING)


def restore(
    directory: DIRECTORY = None,
    keys: KEYS = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    blobs: BlobStore = None,
    force: Annotated[bool, typer.Option("--force", help="In place of the database and blobs that are there.")] = False,
    json: AsJson = False,
) -> None:
    """Put a backup of database and blobs back, after it was compared with its manifest; stop the coordinators first.

    The directory of evidence is left as it is: the next start fences again whatever its log of tombstones remembers.
    With --keys it is put back as well, as far as it is lost, and never from a copy that is older than an erasure.
    """
    from lethe.printing import print_record, say

    settings = settings_from(home=home, database_url=database_url, blobs=blobs)
    _refuse_nothing(directory, keys)
    configure_logging(as_json=settings.log_json)
    said: dict[str, Any] = {}

    async def put_back(coordinator: Coordinator) -> None:
        from coordinator.runtime.backup import keys as of_keys
        from coordinator.runtime.backup import restoring

        if keys is not None:
            said["files_of_evidence"] = await asyncio.to_thread(of_keys.restore, keys, settings.evidence_path)
        if directory is not None:
            found = await restoring.restore(coordinator, directory, force=force, say=say)
            said["backup"] = found.model_dump(exclude_none=True)

    asyncio.run(_carried_out(settings, put_back))
    print_record(said, as_json=json)
    if not settings.evidence_path.is_dir() or not any(settings.evidence_path.iterdir()):
        say(f"{settings.evidence_path} is empty: without its keys nothing can be read: lethe restore --keys DIR")
    say("start a coordinator: it fences again whatever the log of tombstones remembers; then: lethe doctor")


async def _carried_out(settings: Settings, work: Callable[[Coordinator], Awaitable[None]]) -> None:
    from coordinator.runtime.backup.manifest import BackupUnusable
    from coordinator.runtime.backup.restoring import NotEmpty
    from coordinator.store.snapshots import ToolFailed
    from coordinator.tombstones.port import LogCorrupt

    coordinator = open_coordinator(settings)
    try:
        with database_asked():
            await work(coordinator)
    except NotEmpty as error:
        step = "restore elsewhere (--home), or with --force in its place"
        raise CommandFailed(str(error), next_step=step, exit_code=UNUSABLE) from error
    except BackupUnusable as error:
        raise CommandFailed(str(error), next_step="see docs/operations.md, Backups", exit_code=UNUSABLE) from error
    except ToolFailed as error:
        what, _, step = str(error).rpartition("; ")
        raise CommandFailed(what or str(error), next_step=step if what else None) from error
    except LogCorrupt as error:
        raise CommandFailed(f"the log of tombstones is damaged: {error}", next_step="lethe doctor") from error
    finally:
        await coordinator.close()


def _refuse_nothing(directory: Path | None, keys: Path | None) -> None:
    if directory is None and keys is None:
        step = "give DIR for database and blobs, --keys DIR for the directory of evidence, or both"
        raise CommandFailed("there is nothing to do", next_step=step, exit_code=UNUSABLE)


def _refuse_within(directory: Path | None, keys: Path | None, settings: Settings) -> None:
    """Keys in a backup of what they open would undo every erasure."""
    places = {"DIR": directory, "--keys": keys, "the home": settings.home}
    named = {name: path.resolve() for name, path in places.items() if path is not None}
    for inner, path in named.items():
        for outer, other in named.items():
            if inner != outer and (path == other or other in path.parents):
                step = "keep them apart: keys and backups in places that are lost or stolen one by one"
                raise CommandFailed(f"{inner} lies within {outer}", next_step=step, exit_code=UNUSABLE)
