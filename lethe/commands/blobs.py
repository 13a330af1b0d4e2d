"""`lethe blobs`: store files that a run refers to by digest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lethe.commands.clients import Federation
from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Blobs: safetensors files, named by the digest of their bytes.")


@app.command(
    **examples("lethe blobs upload init.safetensors", "lethe blobs upload init.safetensors --json | jq -r .digest")
)
def upload(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A safetensors file.")],
    federation: Federation = None,
    json: AsJson = False,
) -> None:
    """Upload a file and print its digest, for `init` or `validation.data` of a run."""
    from lethe.printing import print_record

    with connect(context) as client:
        stored = client.blobs.upload(file, federation=federation)
    print_record(stored.document, as_json=json)
