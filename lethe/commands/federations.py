"""`lethe federations`: the tenants of a coordinator."""

from __future__ import annotations

from typing import Annotated

import typer

from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Federations: groups of clients that train together.")


@app.command(**examples("lethe federations create hospitals"))
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name.")],
    allocation: Annotated[
        str | None,
        typer.Option(
            help="How clients are divided among jobs: game, random, round_robin or greedy; not when left out."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Make a federation."""
    from lethe.printing import print_record

    with connect(context) as client:
        print_record(client.federations.create(name, allocation=allocation).document, as_json=json)


@app.command("list", **examples("lethe federations list", "lethe federations list --json | jq -r .id"))
def list_(context: typer.Context, json: AsJson = False) -> None:
    """Federations that your credential can see."""
    from lethe.printing import Column, print_answers, when

    with connect(context) as client:
        columns: dict[str, Column] = {"name": "name", "id": "id", "created": when("created_at")}
        print_answers(client.federations.list(), columns, as_json=json)
