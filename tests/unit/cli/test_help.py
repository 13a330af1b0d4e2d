"""`lethe --help` opens at once, on hosts of every role, and tells how each command is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from lethe.cli import app


def commands(here: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in here.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(typer.main.get_command(app)))
HEAVY = {"torch", "sqlalchemy", "fastapi", "uvicorn", "httpx", "numpy", "pydantic", "coordinator", "worker"}


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from lethe.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & HEAVY


def test_help_takes_less_than_two_seconds_of_processor_time() -> None:
    """The wall clock of a busy machine would say less; unhindered it takes about 0.4 s."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-m", "lethe.cli", "--help"], capture_output=True, timeout=60, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2.0


def test_each_command_says_what_it_does_and_shows_an_example() -> None:
    for name, command in ALL.items():
        assert command.help, name
        assert f"lethe {name}" in (command.epilog or ""), name


def test_each_command_that_prints_data_takes_json() -> None:
    silent = {"serve", "compute", "up", "db upgrade", "demo", "new", "bench", "openapi"}
    silent |= {"clients remove", "credentials revoke", "checkpoints download", "certificates get", "certificates key"}
    silent |= {"certificates opening", "certificates prove", "certificates show", "certificates verifier"}
    silent |= {"certificates revoke-hand-over"}
    silent |= {"clients kit", "runs export", "selection train"}
    for name, command in ALL.items():
        takes_json = any("--json" in parameter.opts for parameter in command.params)
        assert takes_json or name in silent, name
