"""`lethe certificates`: the evidence of completed erasures, and the key it is verified with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lethe.target import connect, examples

app = typer.Typer(no_args_is_help=True, help="Certificates of erasure, and the public key they are verified with.")


@app.command(**examples("lethe certificates get hospital-b -o certificate.json"))
def get(
    context: typer.Context,
    id: Annotated[
        str, typer.Argument(metavar="ID|CLIENT", help="The erasure request's id, or the forgotten client's name.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write it, byte for byte as it was signed.")],
) -> None:
    """The certificate of a completed request. Keep the file as it is: written anew it does not verify."""
    from lethe.printing import say

    with connect(context) as coordinator:
        num_bytes = coordinator.download(f"/v1/erasure-requests/{coordinator.erasure_id(id)}/certificate", output)
    say(f"{output}: {num_bytes} bytes")


@app.command(**examples("lethe certificates key -o lethe.pub.pem"))
def key(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the PEM file.")],
) -> None:
    """The coordinator's public key. A verifier should get it on a way that it trusts, and keep it."""
    from lethe.failures import UNUSABLE, CommandFailed
    from lethe.printing import say

    with connect(context) as coordinator:
        found = coordinator.get("/v1/erasure/discovery")
    try:
        output.write_text(found["public_key"], "utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {output}: {error}", exit_code=UNUSABLE) from error
    say(f"{output}: {found['key_id']}")
