"""`lethe runs`: start, follow and steer training runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.commands.checkpoints import RunName
from lethe.commands.clients import Federation
from lethe.failures import CommandFailed
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from lethe.client import Client

app = typer.Typer(no_args_is_help=True, help="Runs: start, follow and steer training.")


@app.command(**examples("lethe runs create run.yaml", "lethe runs create run.yaml --dry-run"))
def create(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The run file: YAML or JSON.")],
    federation: Federation = None,
    watch_it: Annotated[bool, typer.Option("--watch", help="Follow the run until it ends.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say whether it could be started; nothing is uploaded or changed.")
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Sending the same file again under the same key starts no second run.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Start a run. `validation.data` may be a data source (builtin:digits, npz:test.npz) and `init` a safetensors file:
    they are uploaded first. Paths are relative to the working directory."""
    from uuid import uuid4

    from lethe import run_file
    from lethe.printing import print_record, say

    document = run_file.read(file)
    with connect(context) as client:
        federation_id = client.federation(federation)["id"]
        if dry_run:
            spec, to_upload = run_file.dry_run(document)
            body = {"federation_id": federation_id, "spec": spec, "to_upload": to_upload}
            found = client.post("/v1/runs:validate", body)
            say(f"{file} can be started; nothing was changed")
            print_record(found, as_json=json)
            return
        spec = run_file.resolve(document, lambda path: str(client.upload(path, federation_id=federation_id)["digest"]))
        run = client.post(
            "/v1/runs",
            {"federation_id": federation_id, "spec": spec},
            headers={"Idempotency-Key": idempotency_key or str(uuid4())},
        )
        if json or not watch_it:
            print_record(run, as_json=json)
        else:
            say(f"run {run['name']} started: {run['id']}")
        if watch_it:
            _watch(client, run, json)


@app.command("list", **examples("lethe runs list", "lethe runs list --status running --json"))
def list_(
    context: typer.Context,
    federation: Annotated[str | None, typer.Option("--federation", "-f", help="Only of this one: name or id.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only running, paused, completed, failed or cancelled ones.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Runs and how far they are."""
    from lethe.printing import Column, print_records, when

    columns: dict[str, Column] = {
        "name": "name",
        "status": "status",
        "round": lambda run: f"{run['round']}/{run['rounds_planned']}",
        "accuracy": "accuracy",
        "created": when("created_at"),
        "reason": "reason",
        "id": "id",
    }
    with connect(context) as client:
        federation_id = client.federation(federation)["id"] if federation else None
        print_records(client.pages("/v1/runs", federation_id=federation_id, status=status), columns, as_json=json)


@app.command(**examples("lethe runs show digits"))
def show(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """One run: status, round, accuracy, topology, specification, and its cohorts."""
    from lethe.printing import Column, print_record, print_records

    with connect(context) as client:
        found = client.run(run)
        cohorts = list(client.pages(f"/v1/runs/{found['id']}/cohorts"))
    if json:
        print_record({**found, "cohorts": cohorts}, as_json=True)
        return
    print_record({**found, "topology": found["spec"].get("topology", {}).get("kind", "flat")}, as_json=False)
    names = {cohort["id"]: cohort["name"] for cohort in cohorts}
    columns: dict[str, Column] = {
        "cohort": "name",
        "kind": "kind",
        "parent": lambda cohort: names.get(cohort.get("parent_id")),
        "group": "group",
        "phase": "phase",
        "members": "num_members",
        "epoch": "epoch",
        "round": "round",
        "head": "head",
    }
    print_records(cohorts, columns, as_json=False)


@app.command(**examples("lethe runs watch digits", "lethe runs watch digits --json | jq .type"))
def watch(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """A live table of rounds until the run ends, across restarts of the coordinator, too. Code 1 unless completed."""
    with connect(context) as client:
        _watch(client, client.run(run), json)


def _watch(client: Client, run: dict[str, Any], as_json: bool) -> None:
    from lethe.printing import console
    from lethe.watching import RunView, watch

    view = RunView(run["name"], run["rounds_planned"])
    if as_json:
        _print_lines(client, run["id"], 0)
        status = client.run(run["id"])["status"]
    else:
        watch(view, client.follow(run["id"]), console)
        status = view.status
    if status != "completed":
        raise CommandFailed(f"the run {status}", next_step=f"lethe runs logs {run['id']}")


def _print_lines(client: Client, run_id: str, after: int) -> None:
    from json import dumps

    for event in client.follow(run_id, after=after):
        if event is not None:
            print(dumps(event), flush=True)
            if event["type"] == "RunEnded":
                return


@app.command(**examples("lethe runs join digits --client hospital-c", "lethe runs join digits -c c -c d --json"))
def join(
    context: typer.Context,
    run: RunName,
    client: Annotated[
        list[str], typer.Option("--client", "-c", help="An enrolled client; may be given several times.")
    ],
    json: AsJson = False,
) -> None:
    """Let enrolled clients take part in a run that is going, from its next round on."""
    from lethe.printing import print_record, say

    with connect(context) as connection:
        found = connection.post(f"/v1/runs/{connection.run(run)['id']}/members", {"clients": client})
    if json:
        print_record(found, as_json=True)
    else:
        say(f"{', '.join(client)} joined run {found['name']}")


@app.command(**examples("lethe runs pause digits"))
def pause(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """Hand out no more work; what is done stays."""
    _steer(context, run, "pause", json)


@app.command(**examples("lethe runs resume digits"))
def resume(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """Go on with a paused run."""
    _steer(context, run, "resume", json)


@app.command(**examples("lethe runs cancel digits"))
def cancel(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """End a run for good; its checkpoints stay."""
    _steer(context, run, "cancel", json)


def _steer(context: typer.Context, name: str, action: str, as_json: bool) -> None:
    from lethe.printing import print_record, say

    with connect(context) as client:
        run = client.post(f"/v1/runs/{client.run(name)['id']}/{action}")
    if as_json:
        print_record(run, as_json=True)
    else:
        say(f"run {run['name']} is {run['status']}")


@app.command(**examples("lethe runs logs digits", "lethe runs logs digits --follow --json"))
def logs(
    context: typer.Context,
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run ends.")] = False,
    after: Annotated[int, typer.Option(help="Only events after this sequence number.")] = 0,
    json: AsJson = False,
) -> None:
    """What happened, event by event."""
    from json import dumps

    with connect(context) as client:
        run_id = client.run(run)["id"]
        for event in client.follow(run_id, after=after) if follow else client.events(run_id, after=after):
            if event is None:
                continue
            if json:
                print(dumps(event), flush=True)
            else:
                data = " ".join(f"{key}={value}" for key, value in event["data"].items() if value is not None)
                print(f"{event['seq']:>6} {event['at'][:23]} {event['type']:<20} {data}", flush=True)
            if follow and event["type"] == "RunEnded":
                return


@app.command(**examples("lethe runs tasks digits", "lethe runs tasks digits --status leased"))
def tasks(
    context: typer.Context,
    run: RunName,
    status: Annotated[str | None, typer.Option(help="Only tasks in this state.")] = None,
    json: AsJson = False,
) -> None:
    """Who does what: tasks with their attempts, progress and failures."""
    from lethe.printing import Column, print_records

    columns: dict[str, Column] = {
        "client": "client_name",
        "round": "round",
        "kind": "kind",
        "status": "status",
        "attempt": "attempt",
        "failures": "num_failures",
        "progress": lambda task: f"{task['progress']:.0%}",
        "failure": "failure",
        "id": "id",
    }
    with connect(context) as client:
        found = client.run(run)
        print_records(client.pages(f"/v1/runs/{found['id']}/tasks", status=status), columns, as_json=json)


@app.command(**examples("lethe runs history digits", "lethe runs history digits --updates --json"))
def history(
    context: typer.Context,
    run: RunName,
    updates: Annotated[bool, typer.Option("--updates", help="List the sealed copies one by one.")] = False,
    json: AsJson = False,
) -> None:
    """What is kept of past rounds, cohort by cohort, and which erasure methods it suffices for."""
    from lethe.printing import Column, print_records

    coverage: dict[str, Column] = {
        "cohort": "cohort",
        "rounds": lambda row: len(row["rounds"]),
        "interval": "interval",
        "bytes": "sealed_bytes",
        "error": "relative_error",
        "suffices for": lambda row: ", ".join(row["suffices_for"]),
        "report": "report",
    }
    copies: dict[str, Column] = {
        "cohort": "cohort",
        "round": "round",
        "client": "client_name",
        "bytes": "bytes",
        "dtype": "dtype",
        "error": "relative_error",
        "digest": "digest",
    }
    with connect(context) as client:
        path = f"/v1/runs/{client.run(run)['id']}/history"
        rows = client.pages(f"{path}/updates" if updates else path)
        print_records(rows, copies if updates else coverage, as_json=json)
