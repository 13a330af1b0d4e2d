"""`lethe doctor`: whether all is well with an installation, looked at where it lies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.database_faults import database_asked
from lethe.failures import UNUSABLE, CommandFailed
from lethe.process import BlobStore, DatabaseUrl, Home, configure_logging, open_coordinator, settings_from
from lethe.target import AsJson, examples

if TYPE_CHECKING:
    from coordinator.runtime.doctor.examination import Report
    from coordinator.runtime.doctor.findings import Finding
    from coordinator.runtime.settings import Settings

HELP = examples("lethe doctor", "lethe doctor --repair", "lethe doctor --deep --json")


def doctor(
    home: Home = None,
    database_url: DatabaseUrl = None,
    blobs: BlobStore = None,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended without harm.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Open every stored blob and compare its digest; reads everything.")
    ] = False,
    url: Annotated[
        str | None, typer.Option(help="A coordinator of this installation to ask; else those that serve this home.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Look at everything that an installation keeps: database, blobs, keys, evidence, permissions, leftovers.

    Run it where the coordinator runs, as its user and with its settings; safe beside one that runs. Exit code 0: all is
    well (with --repair: now); 1: something is not; 2: it cannot look.
    """
    settings = settings_from(home=home, database_url=database_url, blobs=blobs)
    _refuse_what_is_not_there(settings)
    configure_logging(as_json=settings.log_json)
    try:
        report = asyncio.run(_examined(settings, repairs=repair, is_deep=deep, url=url))
    except CommandFailed as failure:
        raise CommandFailed(failure.message, next_step=failure.next_step, exit_code=UNUSABLE) from failure
    _print(report, as_json=json)
    if not report.is_well:
        raise typer.Exit(1)


async def _examined(settings: Settings, *, repairs: bool, is_deep: bool, url: str | None) -> Report:
    from coordinator.runtime.doctor.examination import examine
    from coordinator.runtime.doctor.findings import Installation
    from lethe.printing import notes, say

    coordinator = open_coordinator(settings)
    try:
        with database_asked():
            tell = say if notes.is_terminal else lambda text: None
            installation = Installation(coordinator, is_deep=is_deep, url=url, say=tell)
            return await examine(installation, repairs=repairs)
    finally:
        await coordinator.close()


def _refuse_what_is_not_there(settings: Settings) -> None:
    """Refuse a place where nothing is: to look must not make an empty installation."""
    from coordinator.runtime.coordinator import database_files

    place = database_files(settings)[0] if settings.is_embedded else settings.home
    if not Path(place).exists():
        raise CommandFailed(
            f"there is no installation: {place} does not exist",
            next_step="give the settings of `lethe serve`: --home or LETHE_HOME, --database-url or LETHE_DATABASE_URL",
            exit_code=UNUSABLE,
        )


def _print(report: Report, *, as_json: bool) -> None:
    from lethe.printing import print_record, print_records, say

    findings = [*(_shown(one, "mended") for one in report.mended)]
    findings += [_shown(one, "fault" if one.is_fault else "note") for one in report.left]
    if as_json:
        print_record({"well": report.is_well, "looked": report.looked, "findings": findings}, as_json=True)
        return
    if findings:
        print_records(findings, {"": "kind", "name": "name", "found": "what", "what to do": "remedy"}, as_json=False)
    num_faults = sum(one.is_fault for one in report.left)
    say(f"{len(report.looked)} checks; {'all is well' if report.is_well else f'{num_faults} faults'}")


def _shown(finding: Finding, kind: str) -> dict[str, Any]:
    return {"kind": kind, "name": finding.name, "what": finding.what, "remedy": finding.remedy}
