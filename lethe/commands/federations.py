"""`lethe federations`: the tenants of a coordinator."""

from __future__ import annotations

from typing import Annotated

import typer

from lethe.target import AsJson, connect, examples

FourEyesOption = Annotated[
    str | None,
    typer.Option(help="Which requests to forget somebody else has to approve: off, asked (that ask for it) or all."),
]

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
    four_eyes: FourEyesOption = None,
    json: AsJson = False,
) -> None:
    """Make a federation."""
    from lethe.printing import print_record

    with connect(context) as client:
        made = client.federations.create(name, allocation=allocation, four_eyes=four_eyes)
        print_record(made.document, as_json=json)


@app.command("four-eyes", **examples("lethe federations four-eyes all", "lethe federations four-eyes off -f hospitals"))
def four_eyes(
    context: typer.Context,
    rule: Annotated[str, typer.Argument(help="off, asked or all.")],
    federation: Annotated[str | None, typer.Option("--federation", "-f", help="Its name or id.")] = None,
    json: AsJson = False,
) -> None:
    """Say which requests to forget somebody else than the filer has to approve, from now on."""
    from lethe.printing import print_record

    with connect(context) as client:
        changed = client.federations.demand_four_eyes(rule, federation=federation)
        print_record(changed.document, as_json=json)


@app.command("list", **examples("lethe federations list", "lethe federations list --json | jq -r .id"))
def list_(context: typer.Context, json: AsJson = False) -> None:
    """Federations that your credential can see."""
    from lethe.printing import Column, print_answers, when

    with connect(context) as client:
        columns: dict[str, Column] = {"name": "name", "id": "id", "created": when("created_at")}
        print_answers(client.federations.list(), columns, as_json=json)
