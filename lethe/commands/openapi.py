"""`lethe openapi`: the API's contract, and whether the committed one still tells the truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from lethe.failures import CommandFailed, require
from lethe.target import examples

COMMITTED: Final = Path(__file__).parents[2] / "openapi" / "v1.json"

HELP = examples("lethe openapi > openapi/v1.json", "lethe openapi --check")


def openapi(
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the committed openapi/v1.json; exit code 1 when it differs.")
    ] = False,
) -> None:
    """Print the OpenAPI document of the HTTP API. Needs no running coordinator."""
    require("coordinator", "fastapi", "sqlalchemy")
    from coordinator.api.openapi import text

    document = text()
    if not check:
        sys.stdout.write(document)
    elif not COMMITTED.is_file() or COMMITTED.read_text("utf-8") != document:
        raise CommandFailed(f"{COMMITTED} is not what the code serves", next_step="lethe openapi > openapi/v1.json")
