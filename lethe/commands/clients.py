"""`lethe clients`: the data holders of a federation and their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Clients: data holders, each with one worker agent and one token.")

Federation = Annotated[
    str | None, typer.Option("--federation", "-f", help="Name or id; may be left out when there is only one.")
]
TokenOut = Annotated[
    Path | None, typer.Option(help="Write the token to this new file (mode 600) instead of printing it.")
]
ClientName = Annotated[str, typer.Argument(metavar="CLIENT", help="Name or id.")]


@app.command(
    **examples(
        "lethe clients add hospital-a --federation hospitals --token-out a.token",
        "lethe clients add hospital-b --federation hospitals > b.token",
        "lethe clients add hospital-c --canary 3 20260301 --token-out c.token",
    )
)
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name: lower case, stable for ever.")],
    federation: Federation = None,
    token_out: TokenOut = None,
    canary: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="CLASS SEED", help="A backdoor that it carries in its data; audits of its erasure look for it."
        ),
    ] = None,
    max_samples: Annotated[
        int | None, typer.Option(help="The most samples that a result of it may claim; any number when left out.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Enrol a client. Its token is shown once: hand it to the data holder."""
    from lethe.tokens import hand_over, refuse_existing

    refuse_existing(token_out)
    carried = None if canary is None else {"target_class": canary[0], "seed": canary[1]}
    with connect(context) as client:
        issued = client.clients.enrol(name, federation=federation, canary=carried, max_samples=max_samples)
    hand_over(issued.document, token_out, what=f"client {name}", as_json=json)


@app.command("list", **examples("lethe clients list", "lethe clients list -f hospitals --json"))
def list_(context: typer.Context, federation: Federation = None, json: AsJson = False) -> None:
    """Clients, and which of their agents are online."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "name": "name",
        "status": "status",
        "online": "online",
        "last seen": when("last_seen_at"),
        "agent": "agent_version",
        "id": "id",
    }
    with connect(context) as client:
        print_answers(client.clients.list(federation=federation), columns, as_json=json)


@app.command(**examples("lethe clients rotate hospital-a --token-out a2.token"))
def rotate(
    context: typer.Context,
    client_name: ClientName,
    federation: Federation = None,
    token_out: TokenOut = None,
    json: AsJson = False,
) -> None:
    """Give a client a new token; the old one stops working at once."""
    from lethe.tokens import hand_over, refuse_existing

    refuse_existing(token_out)
    with connect(context) as client:
        found = client.clients.get(client_name, federation=federation)
        issued = found.rotate()
    hand_over(issued.document, token_out, what=f"client {found.name}", as_json=json)


@app.command(**examples("lethe clients remove hospital-a"))
def remove(
    context: typer.Context,
    client_name: ClientName,
    federation: Federation = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a client: its agent must stop, its open tasks are withdrawn. What it contributed stays in the models."""
    from lethe.printing import say

    with connect(context) as client:
        found = client.clients.get(client_name, federation=federation)
        if not yes:
            typer.confirm(f"Remove client {found.name} for good?", abort=True)
        found.remove()
    say(f"client {found.name} removed")
