"""`lethe worker`: the agent that a data holder runs beside its data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.commands.option_groups import with_groups
from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import AsJson, Target, examples

if TYPE_CHECKING:
    from services.audit.spec import Canary
    from worker.settings import WorkerOptions

app = typer.Typer(
    invoke_without_command=True,
    **examples(
        "lethe worker --coordinator https://lethe.example.org --token-file a.token --data npz:scans.npz",
        "lethe worker --coordinator URL --token-file a.token --task my_task.py:MyTask --data anything",
        "lethe worker --fleet fleet.yaml --jobs 2",
        "lethe worker check",
        "lethe worker report",
    ),
)
CacheDir = Annotated[Path | None, typer.Option(help="Where models are kept; under ~/.cache/lethe.")]
LedgerDir = Annotated[
    Path | None, typer.Option(help="Where erased samples are written down, for good; under ~/.local/state/lethe.")
]


class Display(StrEnum):
    auto = "auto"
    live = "live"
    log = "log"


@dataclass(frozen=True)
class Options:
    """Whom to serve, with what, and how."""

    coordinator: Annotated[
        str | None, typer.Option(help="The coordinator's address; else `lethe --url` or the fleet file's.")
    ] = None
    token_file: Annotated[Path | None, typer.Option(help="A file that holds the client's token.")] = None
    task: Annotated[
        str,
        typer.Option(
            help="builtin:classifier, builtin:image-classifier, builtin:tabular-classifier, FILE.py:Class "
            "or package.module:Class."
        ),
    ] = "builtin:classifier"
    data: Annotated[
        str | None,
        typer.Option(
            help="Data source: npz:FILE, csv:FILE?label=COLUMN, tsv:FILE, text:FILE, digits, mnist; "
            "given as text to a task of your own."
        ),
    ] = None
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the data's file is looked for first; then in the folders of LETHE_DATA.")
    ] = None
    canary: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="CLASS SEED",
            help="Carry a backdoor in some training samples and say so: audits can see whether you were forgotten.",
        ),
    ] = None
    fleet: Annotated[Path | None, typer.Option(help="A YAML file with several clients to serve from here.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="How many tasks may train at the same time.")] = 1
    device: Annotated[str, typer.Option(help="auto (CUDA when present), cpu, cuda, cuda:1, …")] = "auto"
    once: Annotated[
        bool, typer.Option("--once", help="Do what one claim brings, then exit; 3 when there is nothing.")
    ] = False
    wait: Annotated[
        float, typer.Option("--wait", "--wait-s", min=0.0, help="With --once: seconds to wait for work.")
    ] = 25.0
    grace: Annotated[
        float,
        typer.Option("--grace", "--grace-s", min=0.0, help="After SIGTERM: seconds to finish before handing back."),
    ] = 20.0
    ca_file: Annotated[Path | None, typer.Option(help="More certificate authorities to trust (PEM).")] = None
    cache_dir: CacheDir = None
    cache_mb: Annotated[
        int, typer.Option(min=0, help="The most that kept models may occupy; a larger one is fetched for each task.")
    ] = 2048
    ledger_dir: LedgerDir = None
    display: Annotated[Display, typer.Option(help="Live lines, log lines, or what suits the terminal.")] = Display.auto
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects.")] = False


@app.callback()
@with_groups
def worker(context: typer.Context, given: Options) -> None:
    """Serve a client: claim work, train on this machine's data, send the change of the weights. Opens no port.

    The coordinator never sends code. Exit codes: 0 done, 1 refused or unreachable, 2 unusable options or
    data, 3 nothing to do.
    """
    if context.invoked_subcommand is not None:
        return
    require("worker", "torch")
    from worker.main import main
    from worker.settings import OptionsUnusable

    options = _worker_options(given, context.find_object(Target) or Target())
    try:
        raise typer.Exit(main(options))
    except OptionsUnusable as error:
        raise CommandFailed(
            str(error), next_step="lethe worker --help, or docs/worker.md", exit_code=UNUSABLE
        ) from error


def _worker_options(given: Options, target: Target) -> WorkerOptions:
    from services.data.data_folders import folders_of
    from worker.settings import WorkerOptions, default_cache_dir, default_ledger_dir

    is_alone, token_file = given.fleet is None, given.token_file
    if is_alone and token_file is None and target.token is None:
        token_file = target.token_file
    return WorkerOptions(
        coordinator=given.coordinator or (target.url if is_alone else None),
        token=target.token if is_alone and given.token_file is None else None,
        token_file=token_file,
        task=given.task,
        data=given.data,
        canary=_canary(given.canary),
        data_folders=(*([given.data_dir] if given.data_dir else []), *folders_of(os.environ)),
        fleet=given.fleet,
        jobs=given.jobs,
        device=given.device,
        once=given.once,
        wait_s=given.wait,
        grace_s=given.grace,
        ca_file=given.ca_file,
        cache_dir=given.cache_dir or default_cache_dir(),
        cache_bytes=given.cache_mb << 20,
        ledger_dir=given.ledger_dir or default_ledger_dir(),
        display=given.display.value,
        log_json=given.log_json,
    )


def _canary(given: tuple[int, int] | None) -> Canary | None:
    from pydantic import ValidationError

    from services.audit.spec import Canary

    try:
        return Canary(target_class=given[0], seed=given[1]) if given is not None else None
    except ValidationError as error:
        raise CommandFailed(
            f"--canary {given}: {error.errors()[0]['msg']}", next_step="give a class and a seed", exit_code=UNUSABLE
        ) from error


@app.command(**examples("lethe worker report", "lethe worker report --json"))
def report(cache_dir: CacheDir = None, ledger_dir: LedgerDir = None, json: AsJson = False) -> None:
    """What workers on this machine did, what they sent, and what they store. Reads files here, asks nobody."""
    from dataclasses import asdict

    from pydantic_core import to_jsonable_python

    from lethe.printing import Column, print_record, print_records
    from worker.report import gather
    from worker.settings import default_cache_dir, default_ledger_dir

    found = to_jsonable_python(asdict(gather(cache_dir or default_cache_dir(), ledger_dir or default_ledger_dir())))
    if json:
        print_record(found, as_json=True)
        return
    columns: dict[str, Column] = {
        "client": "client",
        "run": "run",
        "results": lambda row: ", ".join(f"{count} {kind}" for kind, count in sorted(row["tasks"].items())),
        "updates": "updates",
        "bytes": "update_bytes",
        "samples": "most_samples",
        "last": lambda row: row["last_at"][:19].replace("T", " "),
        "figures": lambda row: ", ".join(row["figures"]),
        "to": "coordinator",
    }
    print_records(found["sent"], columns, as_json=False)
    stored = found["stored"]
    left_out = stored.pop("samples_left_out")
    print_record({**stored, "samples_left_out": sum(left_out.values())}, as_json=False)


@app.command(**examples("lethe worker check", "lethe worker check --device cuda > check.txt"))
def check(
    device: Annotated[str, typer.Option(help="auto (CUDA when present), cpu, cuda, cuda:1, …")] = "auto",
    json: AsJson = False,
) -> None:
    """One tiny training on this machine: device, determinism, mixed precision, throughput. Asks nobody, sends nothing.

    The page that it prints can be sent to the operator. Exit code 1 when something is not as it should be.
    """
    require("worker", "torch")
    from dataclasses import asdict
    from importlib.metadata import version

    from lethe.printing import print_record
    from worker.check import check as try_out
    from worker.task_loading import TaskUnusable

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's condition for deterministic products
    try:
        found = try_out(device)
    except TaskUnusable as error:
        raise CommandFailed(str(error), next_step="lethe worker check --device cpu", exit_code=UNUSABLE) from error
    if json:
        print_record({**asdict(found), "passed": found.passed, "lethe": version("lethe")}, as_json=True)
    else:
        print(f"lethe worker check (release {version('lethe')}) on {found.device}")
        marks = {True: "ok  ", False: "FAIL", None: "n/a "}
        for one in found.findings:
            print(f"{marks[one.ok]}  {one.name:<16} {one.detail}")
    if not found.passed:
        raise CommandFailed("this machine is not fit to train as it is: see what FAILed above")
