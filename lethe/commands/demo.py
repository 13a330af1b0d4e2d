"""`lethe demo`: see it work, in one command."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import examples

if TYPE_CHECKING:
    from rich.console import Console

    from lethe.demo.story import Outcome

HELP = examples("lethe demo", "lethe demo --rounds 20 --keep")
LIMIT_S = 300.0


def demo(
    rounds: Annotated[int, typer.Option(min=2, help="How many rounds to train.")] = 10,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data and logs, to look at them afterwards.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="A new or empty directory for data and logs (kept).")
    ] = None,
) -> None:
    """A coordinator and five workers, in processes of their own, train on real handwritten digits.

    In the middle the coordinator is killed with SIGKILL and started again; the run goes on. Takes about half a minute.
    """
    require("compute,worker", "fastapi", "torch")
    from lethe.demo.story import play, print_outcome
    from lethe.printing import console

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise CommandFailed(f"{directory} is not empty", next_step="choose another --dir", exit_code=UNUSABLE)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    started = time.monotonic()
    try:
        outcome = play(console, directory=directory, keep=keep, rounds=rounds, limit_s=LIMIT_S)
    except KeyboardInterrupt:
        console.print("stopped; every process of the demo has ended", highlight=False)
        raise
    except CommandFailed:
        raise
    except Exception as error:
        raise CommandFailed(f"the demo failed: {error}", next_step="lethe demo --keep keeps the logs") from error
    print_outcome(console, outcome)
    _print_where_next(console, outcome, time.monotonic() - started)


def _print_where_next(console: Console, outcome: Outcome, seconds: float) -> None:
    lines = [
        "",
        f"Done in {seconds:.0f} s: all rounds are there, and nothing was lost with the killed process.",
        "Where to look next:",
    ]
    if outcome.kept_in is not None:
        port = outcome.url.rpartition(":")[2]
        lines += [
            f"  this run         lethe serve --home {outcome.kept_in / 'coordinator'} --port {port}",
            f"                   then {outcome.url}/docs, and in another terminal:",
            f"                   export LETHE_URL={outcome.url}",
            f"                   export LETHE_TOKEN_FILE={outcome.kept_in}/coordinator/admin.token",
            "                   lethe checkpoints list digits; lethe runs logs digits",
            f"  its logs         {outcome.kept_in}",
        ]
    else:
        lines += ["  keep the data    lethe demo --keep"]
    lines += [
        "  your own         lethe serve, then http://127.0.0.1:8440/docs for the API",
        "                   lethe federations create, clients add, worker, runs create: each has --help",
        "  read             README.md (a tour), docs/run-file.md, docs/worker.md, docs/architecture.md",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
