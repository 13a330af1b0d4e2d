"""`lethe evidence`: the log of tombstones and the signing key, against what the database knows of them."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.failures import UNUSABLE, CommandFailed
from lethe.process import DatabaseUrl, Home, open_coordinator, refuse_old_schema, settings_from
from lethe.target import AsJson, examples

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

app = typer.Typer(no_args_is_help=True, help="Tombstones and keys, compared with the database (run where they are).")

CONSEQUENCES = """\
What is missing is written to the log again as far as the database knows it. What neither of them knows is lost:
if the database was restored from a backup as well, somebody who was erased since then may be served again.
Certificates issued from now on say that this happened. First look for the log elsewhere: another replica,
a directory that is not mounted, a backup of the directory of evidence."""


@app.command(**examples("lethe evidence show", "lethe evidence show --json"))
def show(home: Home = None, database_url: DatabaseUrl = None, json: AsJson = False) -> None:
    """How far the database has come with the log, which key signs, and what happened to either."""
    from lethe.printing import print_record

    print_record(asyncio.run(opened(_show, home=home, database_url=database_url)), as_json=json)


@app.command("accept-loss", **examples("lethe evidence accept-loss", "lethe evidence accept-loss --yes --json"))
def accept_loss(
    home: Home = None,
    database_url: DatabaseUrl = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: AsJson = False,
) -> None:
    """Confirm that entries of the log of tombstones are lost for good, so that the coordinator goes on without them."""
    from lethe.printing import print_record

    async def accept(coordinator: Coordinator) -> dict[str, Any]:
        from coordinator.runtime import remedies
        from coordinator.tombstones.taint_lists import TAINT, TaintLists

        loss = await remedies.find_loss(coordinator.database, coordinator.tombstones)
        if loss is None:
            raise CommandFailed("the log of tombstones has all that the database knows of: nothing is lost")
        if not yes:
            _ask(loss.what)
        try:
            lists = TaintLists(coordinator.settings.evidence_path / TAINT)
            found = await remedies.accept_loss(coordinator.database, coordinator.tombstones, lists)
        except remedies.NotNeeded as error:
            raise CommandFailed(str(error)) from error
        return described(found)

    print_record(asyncio.run(opened(accept, home=home, database_url=database_url)), as_json=json)


def described(incident: Any) -> dict[str, Any]:
    return {"at": incident.at.isoformat(), "kind": incident.kind, "explanation": incident.explanation}


async def opened(work: Any, **options: object) -> Any:
    """Open a coordinator of which nothing runs."""
    from coordinator.runtime.signing import EvidenceLost
    from services.audit.keys import KeyUnreadable

    coordinator = open_coordinator(settings_from(**options))
    try:
        await refuse_old_schema(coordinator)
        return await work(coordinator)
    except (EvidenceLost, KeyUnreadable) as error:
        raise CommandFailed(str(error)) from error
    finally:
        await coordinator.database.close()


async def _show(coordinator: Coordinator) -> dict[str, Any]:
    from coordinator.runtime import remedies
    from coordinator.store import evidence
    from coordinator.tombstones.port import LogCorrupt

    async with coordinator.database.read() as connection:
        mark = await evidence.mark(connection)
        keys = await evidence.signing_keys(connection)
        incidents = await evidence.incidents(connection)
    loss = await remedies.find_loss(coordinator.database, coordinator.tombstones)
    try:
        num_entries: int | None = len((await asyncio.to_thread(coordinator.tombstones.contents)).entries)
    except LogCorrupt:
        num_entries = None
    is_present = bool(keys) and await asyncio.to_thread(coordinator.signing_keys.is_present, keys[-1])
    return {
        "tombstones_known": mark.num_tombstones if mark is not None else None,
        "tombstones_in_log": num_entries,
        "log": "ok" if loss is None else loss.what,
        "signing_key": keys[-1].key_id if keys else None,
        "signing_key_present": is_present,
        "earlier_keys": [key.key_id for key in keys[:-1]],
        "incidents": [described(one) for one in incidents],
    }


def _ask(what: str) -> None:
    from lethe.printing import notes

    notes.print(what, CONSEQUENCES, sep="\n", markup=False, highlight=False)
    if not sys.stdin.isatty():
        raise CommandFailed(
            "this needs a person's word", next_step="lethe evidence accept-loss --yes", exit_code=UNUSABLE
        )
    if typer.prompt('Type "lost" to accept the loss', default="", show_default=False).strip() != "lost":
        raise CommandFailed("nothing was changed")
