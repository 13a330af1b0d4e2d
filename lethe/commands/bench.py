"""`lethe bench`: measurements, kept in the source tree's benchmarks/ folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lethe.failures import UNUSABLE, CommandFailed
from lethe.target import examples

SOURCE_ROOT: Final = Path(__file__).parents[2]
WHICH: Final = (
    "Which: coordination, training, longpoll, erasure, certificate, assignment, forgetting, recovery, exact, knot, "
    "selection, incentive, scale, views, storm."
)
HELP: dict[str, Any] = {
    # What follows the name is the benchmark's own, its --help included.
    "context_settings": {"ignore_unknown_options": True, "allow_interspersed_args": False},
    **examples("lethe bench coordination --json", "lethe bench erasure --clients 10", "lethe bench exact --help"),
}


def bench(
    name: Annotated[
        str,
        typer.Argument(help=WHICH),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]...", help="The benchmark's own.")] = None,
) -> None:
    """Measure this machine (seconds per round, memory, wake-ups), or what each way to forget is worth."""
    names = available(SOURCE_ROOT / "benchmarks")
    if name not in names:
        raise CommandFailed(
            f"there is no benchmark {name} in {SOURCE_ROOT / 'benchmarks'}",
            next_step=f"there is {', '.join(names)}"
            if names
            else "run it from a clone of the repository: `make setup`",
            exit_code=UNUSABLE,
        )
    sys.path.insert(0, str(SOURCE_ROOT))
    raise typer.Exit(importlib.import_module(f"benchmarks.{name}").main(arguments or []) or 0)


def available(folder: Path) -> list[str]:
    """Modules of the folder that can be run."""
    return sorted(file.stem for file in folder.glob("[a-z]*.py") if "\ndef main(" in file.read_text("utf-8"))
