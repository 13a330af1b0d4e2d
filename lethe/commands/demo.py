"""`lethe demo`: see it work, in one command."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import examples

HELP = examples("lethe demo", "lethe demo --open", "lethe demo --rounds 20 --keep")
LIMIT_S = 300.0


def demo(
    rounds: Annotated[int, typer.Option(min=2, help="How many rounds each run trains.")] = 6,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data and logs, to look at them afterwards.")] = False,
    show: Annotated[
        bool, typer.Option("--open", help="Keep the data and show it on the dashboard in a browser, until Ctrl-C.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="A new or empty directory for data and logs (kept).")
    ] = None,
) -> None:
    """Six clinics train on real handwritten digits, in clusters and in an influence tree; then one is forgotten.

    In the middle the coordinator is killed with SIGKILL and started again; the run goes on. The erasure is filed over
    HTTP and ends with a certificate, which is verified and replayed. Takes about a minute.
    """
    require("compute,worker", "fastapi", "torch")
    from lethe.demo.playing import play
    from lethe.demo.report import print_outcome, print_where_next
    from lethe.printing import console

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise CommandFailed(f"{directory} is not empty", next_step="choose another --dir", exit_code=UNUSABLE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    try:
        outcome = play(console, directory=directory, keep=keep or show, rounds=rounds, limit_s=LIMIT_S)
    except KeyboardInterrupt:
        console.print("stopped; every process of the demo has ended", highlight=False)
        raise
    except CommandFailed:
        raise
    except Exception as error:
        raise CommandFailed(f"the demo failed: {error}", next_step="lethe demo --keep keeps the logs") from error
    print_outcome(console, outcome)
    print_where_next(console, outcome, time.monotonic() - started)
    if show and outcome.kept_in is not None:
        _show(outcome.kept_in, outcome.url)


def _show(directory: Path, url: str) -> None:
    """Serve what the demo left, until Ctrl-C."""
    from lethe.browser import show
    from lethe.children import Children
    from lethe.printing import say

    port = url.rpartition(":")[2]
    try:
        with Children(directory) as children:
            serving = children.start("dashboard", "serve", "--home", str(directory / "coordinator"), "--port", port)
            address = children.wait_for_line(serving, "ready ", within_s=60.0)
            say(f"the dashboard is at {address}/; sign in with the token in {directory}/coordinator/admin.token")
            show(f"{address}/")
            while True:
                children.check()
                time.sleep(0.5)
    except KeyboardInterrupt:
        say(f"stopped; everything is kept in {directory}")
