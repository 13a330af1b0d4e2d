"""`lethe up`: a federation of one's own on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from lethe.client.target import DEFAULT_URL
from lethe.failures import CommandFailed, require
from lethe.target import examples

HELP = examples("lethe up --clients 3", "lethe up --clients 5 --task task.py:Task --data '{number}'")


def up(
    clients: Annotated[int, typer.Option(min=1, max=100, help="How many clients take part.")] = 3,
    task: Annotated[
        str, typer.Option(help="What they train: builtin:classifier, FILE.py:Class or package.module:Class.")
    ] = "builtin:classifier",
    data: Annotated[
        str | None,
        typer.Option(help="Each one's data; {number} is its own, from 0, {clients} how many. Shares of real digits."),
    ] = None,
    home: Annotated[Path, typer.Option(help="Directory of everything that it keeps.")] = Path("lethe-data"),
    port: Annotated[int, typer.Option(help="Of the coordinator, 0 for any free one.")] = 8440,
    is_shown: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Show the dashboard in a browser; when absent, if there is a screen."),
    ] = None,
) -> None:
    """Start a coordinator and clients with workers here, and keep them running until Ctrl-C.

    Started again in the same directory, it goes on where it was. On its own port, commands that are given here find it
    by themselves.
    """
    require("compute,worker", "fastapi", "torch")
    from lethe.browser import has_screen, show
    from lethe.children import Children, ProcessEnded
    from lethe.local_federation import DIGITS, LocalFederation
    from lethe.printing import console, say

    os.umask(0o077)  # tokens, models and logs are for their owner alone
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have it started with Ctrl-C ignored
        signal.signal(number, signal.default_int_handler)
    home.mkdir(parents=True, exist_ok=True)
    federation = LocalFederation(home.absolute(), port, clients, task, DIGITS if data is None else data)
    try:
        with Children(home) as children:
            url = federation.start(children, say)
            say(f"{clients} clients are online; logs in {home}")
            say(f"the dashboard is at {url}/ (sign in with the token in {home}/admin.token), the API at {url}/docs")
            for line in what_next(url, task):
                say(line)
            print(f"up {url}", flush=True)
            if is_shown if is_shown is not None else has_screen():
                show(f"{url}/")
            while True:
                children.check()
                time.sleep(0.5)
    except KeyboardInterrupt:
        say("stopped; everything is kept in " + str(home))
    except (ProcessEnded, TimeoutError) as error:
        for log in sorted(home.glob("*.log")):
            console.print(f"--- the end of {log.name}", highlight=False, markup=False)
            for line in log.read_text("utf-8", errors="replace").splitlines()[-8:]:
                console.print("    " + line, highlight=False, markup=False, soft_wrap=True)
        raise CommandFailed(str(error), next_step=f"read the logs in {home}") from error


def what_next(url: str, task: str) -> list[str]:
    """The commands that begin a run here."""
    lethe = "lethe" if url == DEFAULT_URL else f"lethe --url {url}"
    lines = ["now, in another terminal in this directory:"]
    if not Path("run.yaml").is_file():
        lines.append("    lethe new my-task                 # a run file to begin with, if you have none")
    if not task.startswith("builtin:"):
        lines.append(f"    lethe models init run.yaml --task {task} --data …    # once: the weights to start from")
    return [*lines, f"    {lethe} runs create run.yaml --watch"]
