"""`lethe worker`: the agent that a data holder runs beside its data."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import Target, examples

HELP = examples(
    "lethe worker --coordinator https://lethe.example.org --token-file a.token --data npz:scans.npz",
    "lethe worker --coordinator URL --token-file a.token --task my_task.py:MyTask --data anything",
    "lethe worker --fleet fleet.yaml --jobs 2",
)


class Display(StrEnum):
    auto = "auto"
    live = "live"
    log = "log"


def worker(
    context: typer.Context,
    coordinator: Annotated[
        str | None, typer.Option(help="The coordinator's address; else `lethe --url` or the fleet file's.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file that holds the client's token.")] = None,
    task: Annotated[
        str,
        typer.Option(
            help="builtin:classifier, builtin:image-classifier, builtin:tabular-classifier, FILE.py:Class "
            "or package.module:Class."
        ),
    ] = "builtin:classifier",
    data: Annotated[
        str | None,
        typer.Option(
            help="Data source: npz:FILE, csv:FILE?label=COLUMN, tsv:FILE, text:FILE, digits, mnist; "
            "given as text to a task of your own."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the data's file is looked for first; then in the folders of LETHE_DATA.")
    ] = None,
    canary: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="CLASS SEED",
            help="Carry a backdoor in some training samples and say so: audits can see whether you were forgotten.",
        ),
    ] = None,
    fleet: Annotated[Path | None, typer.Option(help="A YAML file with several clients to serve from here.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many tasks may train at the same time.")] = 1,
    device: Annotated[str, typer.Option(help="auto (CUDA when present), cpu, cuda, cuda:1, …")] = "auto",
    once: Annotated[
        bool, typer.Option("--once", help="Do what one claim brings, then exit; 3 when there is nothing.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", "--wait-s", min=0.0, help="With --once: seconds to wait for work.")
    ] = 25.0,
    grace: Annotated[
        float,
        typer.Option("--grace", "--grace-s", min=0.0, help="After SIGTERM: seconds to finish before handing back."),
    ] = 20.0,
    ca_file: Annotated[Path | None, typer.Option(help="More certificate authorities to trust (PEM).")] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="Where models are kept; under ~/.cache/lethe.")] = None,
    cache_mb: Annotated[
        int, typer.Option(min=0, help="The most that kept models may occupy; a larger one is fetched for each task.")
    ] = 2048,
    ledger_dir: Annotated[
        Path | None, typer.Option(help="Where erased samples are written down, for good; under ~/.local/state/lethe.")
    ] = None,
    display: Annotated[Display, typer.Option(help="Live lines, log lines, or what suits the terminal.")] = Display.auto,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects.")] = False,
) -> None:
    """Serve a client: claim work, train on this machine's data, send the change of the weights. Opens no port.

    The coordinator never sends code. Exit codes: 0 done, 1 refused or unreachable, 2 unusable options or
    data, 3 nothing to do.
    """
    require("worker", "torch")
    from pydantic import ValidationError

    from services.audit.spec import Canary
    from services.data.data_folders import folders_of
    from worker.main import main
    from worker.settings import OptionsUnusable, WorkerOptions, default_cache_dir, default_ledger_dir

    target = context.find_object(Target) or Target()
    is_alone = fleet is None
    try:
        carried = Canary(target_class=canary[0], seed=canary[1]) if canary is not None else None
    except ValidationError as error:
        raise CommandFailed(
            f"--canary {canary}: {error.errors()[0]['msg']}", next_step="give a class and a seed", exit_code=UNUSABLE
        ) from error
    options = WorkerOptions(
        coordinator=coordinator or (target.url if is_alone else None),
        token=target.token if is_alone and token_file is None else None,
        token_file=(token_file or (target.token_file if target.token is None else None)) if is_alone else token_file,
        task=task,
        data=data,
        canary=carried,
        data_folders=(*([data_dir] if data_dir else []), *folders_of(os.environ)),
        fleet=fleet,
        jobs=jobs,
        device=device,
        once=once,
        wait_s=wait,
        grace_s=grace,
        ca_file=ca_file,
        cache_dir=cache_dir or default_cache_dir(),
        cache_bytes=cache_mb << 20,
        ledger_dir=ledger_dir or default_ledger_dir(),
        display=display.value,
        log_json=log_json,
    )
    try:
        raise typer.Exit(main(options))
    except OptionsUnusable as error:
        raise CommandFailed(
            str(error), next_step="lethe worker --help, or docs/worker.md", exit_code=UNUSABLE
        ) from error
