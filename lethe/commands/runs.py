"""`lethe runs`: start, follow and steer training runs."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.commands.checkpoints import RunName
from lethe.commands.clients import Federation
from lethe.failures import CommandFailed
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from lethe.client.synchronous.runs import Run

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
    from lethe import run_file
    from lethe.printing import print_record, say

    document = run_file.read(file)
    with connect(context) as client:
        if dry_run:
            run_file.check_files(document)
            found = client.runs.validate(document, federation=federation)
            say(f"{file} can be started; nothing was changed")
            print_record(found.document, as_json=json)
            return
        run = client.runs.create(document, federation=federation, idempotency_key=idempotency_key)
        if json or not watch_it:
            print_record(run.document, as_json=json)
        else:
            say(f"run {run.name} started: {run.id}")
        if watch_it:
            _watch(run, json)


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
    from lethe.printing import Column, print_answers, when

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
        print_answers(client.runs.list(federation=federation, status=status), columns, as_json=json)


@app.command(**examples("lethe runs show digits"))
def show(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """One run: status, round, accuracy, topology, specification, and its cohorts."""
    from lethe.printing import Column, print_record, print_records

    with connect(context) as client:
        handle = client.runs.get(run)
        found, cohorts = handle.document, [cohort.document for cohort in handle.cohorts()]
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
        _watch(client.runs.get(run), json)


def _watch(run: Run, as_json: bool) -> None:
    from json import dumps

    from lethe.printing import console
    from lethe.watching import RunView, watch

    view = RunView(run.name, run.rounds_planned)
    if as_json:
        for event in run.follow():
            print(dumps(event.document), flush=True)
        status: str = run.refresh().status
    else:
        watch(view, (None if event is None else event.document for event in run.watch()), console)
        status = view.status
    if status != "completed":
        raise CommandFailed(f"the run {status}", next_step=f"lethe runs logs {run.id}")


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
        found = connection.runs.get(run).join(*client)
    if json:
        print_record(found.document, as_json=True)
    else:
        say(f"{', '.join(client)} joined run {found.name}")


@app.command(
    **examples(
        "lethe runs recover digits --method imba_ulrc --param skewed_class=7",
        "lethe runs recover digits --method imba_ulrc --compare-with 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55",
    )
)
def recover(
    context: typer.Context,
    run: RunName,
    method: Annotated[str, typer.Option(help="plain, imba_ulrc, fedrs, moon or quickdrop.")],
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A parameter of the method; repeatable.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="As many as the method says when absent.")] = None,
    compare_with: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Recover the class that lost most since this model.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Make the run's next rounds those of a recovery: accuracy on a class has dropped."""
    from lethe.commands.erase import params_of
    from lethe.printing import print_record, say

    with connect(context) as client:
        found = client.runs.get(run).recover(method, params=params_of(param), rounds=rounds, compare_with=compare_with)
    if json:
        print_record(found.document, as_json=True)
    else:
        say(f"run {found.name} is {found.status}: recovering by {method}")


@app.command(**examples("lethe runs pause digits"))
def pause(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """Hand out no more work; what is done stays."""
    _steer(context, run, lambda found: found.pause(), json)


@app.command(**examples("lethe runs resume digits"))
def resume(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """Go on with a paused run."""
    _steer(context, run, lambda found: found.resume(), json)


@app.command(**examples("lethe runs cancel digits"))
def cancel(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """End a run for good; its checkpoints stay."""
    _steer(context, run, lambda found: found.cancel(), json)


def _steer(context: typer.Context, name: str, action: Callable[[Run], Run], as_json: bool) -> None:
    from lethe.printing import print_record, say

    with connect(context) as client:
        run = action(client.runs.get(name))
    if as_json:
        print_record(run.document, as_json=True)
    else:
        say(f"run {run.name} is {run.status}")


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
        found = client.runs.get(run)
        for event in found.follow(after=after) if follow else found.events(after=after):
            if json:
                print(dumps(event.document), flush=True)
            else:
                data = " ".join(f"{key}={value}" for key, value in event.data.items() if value is not None)
                print(f"{event.seq:>6} {event.document['at'][:23]} {event.type:<20} {data}", flush=True)


@app.command(**examples("lethe runs tasks digits", "lethe runs tasks digits --status leased"))
def tasks(
    context: typer.Context,
    run: RunName,
    status: Annotated[str | None, typer.Option(help="Only tasks in this state.")] = None,
    json: AsJson = False,
) -> None:
    """Who does what: tasks with their attempts, progress and failures."""
    from lethe.printing import Column, print_answers

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
        print_answers(client.runs.get(run).tasks(status=status), columns, as_json=json)


@app.command(**examples("lethe runs history digits", "lethe runs history digits --updates --json"))
def history(
    context: typer.Context,
    run: RunName,
    updates: Annotated[bool, typer.Option("--updates", help="List the sealed copies one by one.")] = False,
    json: AsJson = False,
) -> None:
    """What is kept of past rounds, cohort by cohort, and which erasure methods it suffices for."""
    from lethe.printing import Column, print_answers

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
        found = client.runs.get(run)
        if updates:
            print_answers(found.kept_updates(), copies, as_json=json)
        else:
            print_answers(found.history(), coverage, as_json=json)


class Rows(StrEnum):
    metrics = "metrics"
    checkpoints = "checkpoints"
    rounds = "rounds"
    tasks = "tasks"
    events = "events"


@app.command(
    **examples("lethe runs export digits > metrics.jsonl", "lethe runs export digits --what events -o events.parquet")
)
def export(
    context: typer.Context,
    run: RunName,
    what: Annotated[Rows, typer.Option(help="Which rows; metrics: accuracy, loss and figures of each model.")] = (
        Rows.metrics
    ),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A new .jsonl or .parquet file; JSON lines go to standard output else."),
    ] = None,
) -> None:
    """A run's rows for other programs: JSON lines, or Parquet where pyarrow is installed."""
    from lethe.exporting import rows_of_run, write_rows
    from lethe.printing import say

    with connect(context) as client:
        rows = rows_of_run(client.runs.get(run), what.value)
        num_rows = write_rows(rows, output)
    if output is not None:
        say(f"{output}: {num_rows} rows")
