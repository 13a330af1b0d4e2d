"""The `lethe` command. Its modules import typer only, so that `--help` opens at once on every host of every role."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from lethe.client.target import DEFAULT_TOKEN_FILE, DEFAULT_URL
from lethe.commands import (
    acts,
    backup,
    bench,
    blobs,
    certificates,
    checkpoints,
    clients,
    compute,
    credentials,
    data,
    database,
    demo,
    doctor,
    erase,
    evidence,
    federations,
    incentives,
    keys,
    me,
    methods,
    models,
    new,
    openapi,
    operating,
    requests,
    run_views,
    runs,
    selection,
    serve,
    show_certificate,
    simulate,
    up,
    verify,
    worker,
)
from lethe.environment import refuse_unknown_variables
from lethe.errors import LetheError
from lethe.failures import UNUSABLE, CommandFailed
from lethe.imports import prefer_ours
from lethe.target import PATIENCE_S, Target, examples

HELP_OPTIONS: Final = ("-h", "--help")

app = typer.Typer(
    name="lethe",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP_OPTIONS)},
    **examples(
        "lethe demo                          see it work, in half a minute",
        "lethe new my-task                   a model and data of your own to start from",
        "lethe up --clients 3                a federation on this machine, until Ctrl-C",
        "lethe serve                         a coordinator with SQLite and files here",
        "lethe runs create run.yaml --watch  start a training run and follow it",
        "lethe erase --client NAME --watch   forget a client and follow it",
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lethe {version('lethe')}")
        raise typer.Exit


@app.callback()
def lethe(
    context: typer.Context,
    url: Annotated[str, typer.Option(envvar="LETHE_URL", help="The coordinator's address.")] = DEFAULT_URL,
    token: Annotated[
        str | None, typer.Option(envvar="LETHE_TOKEN", help="Your credential; better a file or the variable.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="LETHE_TOKEN_FILE",
            help=f"A file that holds your credential; {DEFAULT_TOKEN_FILE} when it is there.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="How long to wait for a coordinator on this machine that is starting."
        ),
    ] = PATIENCE_S,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The coordinator for federated learning that can forget.

    The options here are for the commands that talk to a coordinator; they stand before the command's name.
    """
    if not set(sys.argv).intersection(HELP_OPTIONS):
        refuse_unknown_variables(os.environ)
    context.obj = Target(url, token, token_file, wait)


PROCESSES, OPERATION = "Run a process", "Operate a coordinator (over HTTP)"
FORGETTING, PROJECT = "Forget, and show that it was done", "Try and measure"

app.command("serve", rich_help_panel=PROCESSES, **serve.HELP)(serve.serve)
app.command("compute", rich_help_panel=PROCESSES, **compute.HELP)(compute.compute)
app.add_typer(worker.app, name="worker", rich_help_panel=PROCESSES)
app.command("up", rich_help_panel=PROCESSES, **up.HELP)(up.up)
app.add_typer(database.app, name="db", rich_help_panel=PROCESSES)
app.command("doctor", rich_help_panel=PROCESSES, **doctor.HELP)(doctor.doctor)
app.command("backup", rich_help_panel=PROCESSES, **backup.BACKUP_HELP)(backup.backup)
app.command("restore", rich_help_panel=PROCESSES, **backup.RESTORE_HELP)(backup.restore)
app.add_typer(evidence.app, name="evidence", rich_help_panel=PROCESSES)
app.add_typer(keys.app, name="keys", rich_help_panel=PROCESSES)
app.add_typer(federations.app, name="federations", rich_help_panel=OPERATION)
app.add_typer(clients.app, name="clients", rich_help_panel=OPERATION)
app.add_typer(credentials.app, name="credentials", rich_help_panel=OPERATION)
runs.app.command("topology", **run_views.TOPOLOGY_HELP)(run_views.topology)
runs.app.command("series", **run_views.SERIES_HELP)(run_views.series)
runs.app.command("grid", **run_views.GRID_HELP)(run_views.grid)
app.command("me", rich_help_panel=OPERATION, **me.HELP)(me.me)
app.add_typer(runs.app, name="runs", rich_help_panel=OPERATION)
app.command("workers", rich_help_panel=OPERATION, **operating.WORKERS_HELP)(operating.workers)
app.command("events", rich_help_panel=OPERATION, **operating.EVENTS_HELP)(operating.events)
app.command("system", rich_help_panel=OPERATION, **operating.SYSTEM_HELP)(operating.system)
app.add_typer(checkpoints.app, name="checkpoints", rich_help_panel=OPERATION)
app.add_typer(blobs.app, name="blobs", rich_help_panel=OPERATION)
app.add_typer(incentives.app, name="incentives", rich_help_panel=OPERATION)
for _name, (_command, _help) in requests.COMMANDS.items():
    erase.app.command(_name, **_help)(_command)
app.add_typer(erase.app, name="erase", rich_help_panel=FORGETTING)
certificates.app.command("show", **show_certificate.SHOW_HELP)(show_certificate.show)
certificates.app.command("verifier", **show_certificate.VERIFIER_HELP)(show_certificate.verifier)
app.add_typer(certificates.app, name="certificates", rich_help_panel=FORGETTING)
app.add_typer(acts.app, name="acts", rich_help_panel=FORGETTING)
app.command("methods", rich_help_panel=FORGETTING, **methods.HELP)(methods.methods)
app.command("verify", rich_help_panel=FORGETTING, **verify.HELP)(verify.verify)
app.command("demo", rich_help_panel=PROJECT, **demo.HELP)(demo.demo)
app.command("new", rich_help_panel=PROJECT, **new.HELP)(new.new)
app.command("simulate", rich_help_panel=PROJECT, **simulate.HELP)(simulate.simulate)
app.add_typer(selection.app, name="selection", rich_help_panel=PROJECT)
app.command("bench", rich_help_panel=PROJECT, **bench.HELP)(bench.bench)
app.add_typer(data.app, name="data", rich_help_panel=PROJECT)
app.add_typer(models.app, name="models", rich_help_panel=PROJECT)
app.command("openapi", rich_help_panel=PROJECT, **openapi.HELP)(openapi.openapi)


def main() -> None:
    prefer_ours()
    try:
        app()
    except LetheError as error:
        _end(CommandFailed.of(error))
    except BrokenPipeError:  # `lethe runs list | head`
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # files and directories that the user named, or the disk
        place = f"{error.filename}: " if error.filename is not None else ""
        step = "check that it exists, that this user may use it, and that the disk has space"
        _end(CommandFailed(f"{place}{error.strerror or error}", next_step=step, exit_code=UNUSABLE))
    except KeyboardInterrupt:
        sys.exit(130)


def _end(failure: CommandFailed) -> NoReturn:
    typer.secho("error: ", nl=False, err=True, fg="red", bold=True)
    typer.echo(failure.message, err=True)
    if failure.next_step is not None:
        typer.secho("next:  ", nl=False, err=True, fg="cyan", bold=True)
        typer.echo(failure.next_step, err=True)
    sys.exit(failure.exit_code)


if __name__ == "__main__":
    main()
