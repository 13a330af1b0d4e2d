"""`lethe new`: a task of one's own to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from lethe.failures import UNUSABLE, CommandFailed
from lethe.target import examples

HELP = examples("lethe new my-task", "lethe new my-task --dir experiments/my-task")
FILES: Final = ("task.py", "test_task.py", "run.yaml", "simulation.yaml", "README.md")
PLACEHOLDER: Final = "my-task"


def new(
    name: Annotated[str, typer.Argument(help="Of the task and its run: lower case, digits, dashes.")],
    directory: Annotated[Path | None, typer.Option("--dir", help="Where; a folder of that name when absent.")] = None,
) -> None:
    """Make a folder with a model and data of your own in one file, which runs in `lethe simulate` and in workers.

    With it come a run, a simulation and a test.
    """
    from importlib.resources import files

    from lethe.printing import say

    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", name) is None:
        raise CommandFailed(
            f"{name} cannot be the name of a run",
            next_step="use lower-case letters, digits and dashes: lethe new my-task",
            exit_code=UNUSABLE,
        )
    folder = directory or Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandFailed(f"{folder} is there already", next_step="choose another --dir", exit_code=UNUSABLE)
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        text = files("lethe.new_task").joinpath(file).read_text("utf-8")
        (folder / file).write_text(text.replace(PLACEHOLDER, name), "utf-8")
    say(f"{folder}: {', '.join(FILES)}")
    say(f"next:  cd {folder} && lethe simulate simulation.yaml; README.md goes on from there")
