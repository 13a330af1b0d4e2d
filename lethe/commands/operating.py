"""`lethe workers`, `lethe system` and `lethe events`: how everything is, and what happens."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lethe.commands.clients import Federation
from lethe.target import AsJson, connect, examples

WORKERS_HELP = examples("lethe workers", "lethe workers --json | jq 'select(.status == \"away\")'")
SYSTEM_HELP = examples("lethe system")
EVENTS_HELP = examples("lethe events", "lethe events --follow", "lethe events --follow --after 0 --json")


def workers(context: typer.Context, federation: Federation = None, json: AsJson = False) -> None:
    """How the worker of each client is: what it has in hand, what it did, why it last failed."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "client": "client_name",
        "status": "status",
        "seen": when("last_seen_at"),
        "task": lambda one: _in_hand(one["task_in_hand"]),
        "done": "tasks_done",
        "bytes": "bytes_received",
        "device": lambda one: (one["device"] or {}).get("name") or (one["device"] or {}).get("kind"),
        "version": "version",
        "last failure": lambda one: (one["last_failure"] or {}).get("reason"),
    }
    with connect(context) as client:
        print_answers(client.clients.workers(federation=federation), columns, as_json=json)


def system(context: typer.Context, json: AsJson = False) -> None:
    """How the installation is: database, storage, jobs, background work, keys. For its admin."""
    from lethe.printing import Column, print_record, print_records, size, when

    with connect(context) as client:
        found = client.system().document
    if json:
        print_record(found, as_json=True)
        return
    print_record(_summary(found), as_json=False)
    work: dict[str, Column] = {
        "background work": "name",
        "state": "state",
        "since": when("since"),
        "restarts": "restarts",
        "reason": "reason",
    }
    print()
    print_records(found["background"], work, as_json=False)
    stored: dict[str, Column] = {
        "federation": "federation_id",
        "stored": lambda one: size(one["bytes"]),
        "of at most": lambda one: size(one["quota_bytes"]),
    }
    if found["storage_by_federation"]:
        print()
        print_records(found["storage_by_federation"], stored, as_json=False)


def events(
    context: typer.Context,
    federation: Federation = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what happens, until Ctrl-C.")] = False,
    after: Annotated[
        int | None, typer.Option(min=0, help="Behind this number; 0: from the beginning. When absent, the newest 20.")
    ] = None,
    json: AsJson = False,
) -> None:
    """What happened to all runs and requests of a federation."""
    from itertools import islice

    with connect(context) as client:
        told = client.federations.events
        if after is None:
            shown = list(islice(told(federation, newest_first=True), 20))[::-1]
        else:
            shown = list(told(federation, after=after)) if not follow else []
        for event in shown:
            _print(event.document, json)
        if follow:
            seen = shown[-1].seq if shown else after or 0
            for event in client.federations.follow(federation, after=seen):
                _print(event.document, json)


def _summary(system: dict[str, Any]) -> dict[str, Any]:
    """What can be said in one line each."""
    from lethe.printing import size

    database, blobs, queue = system["database"], system["blobs"], system["queue"]
    jobs = ", ".join(f"{num} {status}" for status, num in queue["jobs_by_status"].items())
    oldest = f", the oldest since {queue['oldest_at'][:19].replace('T', ' ')}" if queue["oldest_at"] else ""
    reached = {None: "not used", True: "reached", False: "away"}
    return {
        "version": system["version"],
        "started": system["started_at"][:19].replace("T", " "),
        "database": f"{database['kind']}, schema {database['revision']}"
        + ("" if database["ok"] else ", shut until it was compared with the evidence"),
        "redis": reached[system["redis"] and system["redis"]["ok"]],
        "blobs": f"{blobs['kind']}, {blobs['objects']} objects, {size(blobs['bytes'])}",
        "jobs": (jobs or "none") + oldest,
        "signing key": system["keys"]["signing_key_id"],
    }


def _print(event: dict[str, Any], as_json: bool) -> None:
    from json import dumps

    if as_json:
        print(dumps(event), flush=True)
        return
    about = f"run {event['run_id']}" if event["run_id"] else f"request {event['erasure_id']}"
    print(f"{event['seq']:>6}  {event['at'][:19].replace('T', ' ')}  {event['type']:<20} {about}", flush=True)


def _in_hand(task: dict[str, Any] | None) -> str | None:
    return None if task is None else f"{task['kind']} {task['round']} ({task['progress']:.0%})"
