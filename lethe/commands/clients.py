"""`lethe clients`: the data holders of a federation and their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Annotated

import typer

from lethe.commands.option_groups import with_groups
from lethe.failures import UNUSABLE, CommandFailed
from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Clients: data holders, each with one worker agent and one token.")

Federation = Annotated[
    str | None, typer.Option("--federation", "-f", help="Name or id; may be left out when there is only one.")
]
TokenOut = Annotated[
    Path | None, typer.Option(help="Write the token to this new file (mode 600) instead of printing it.")
]
ClientName = Annotated[str, typer.Argument(metavar="CLIENT", help="Name or id.")]


@dataclass(frozen=True)
class Told:
    """What the coordinator is told of a client when it is enrolled."""

    canary: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="CLASS SEED", help="A backdoor that it carries in its data; audits of its erasure look for it."
        ),
    ] = None
    max_samples: Annotated[
        int | None, typer.Option(help="The most samples that a result of it may claim; any number when left out.")
    ] = None
    resources: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='What a round costs it, else measured: {"samples": 900, "seconds": 20, "bytes": 4000000}.',
        ),
    ] = None


@app.command(
    **examples(
        "lethe clients add hospital-a --federation hospitals --token-out a.token",
        "lethe clients add hospital-b --federation hospitals > b.token",
        "lethe clients add hospital-c --canary 3 20260301 --token-out c.token",
    )
)
@with_groups
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name: lower case, stable for ever.")],
    *,
    federation: Federation = None,
    token_out: TokenOut = None,
    told: Told,
    json: AsJson = False,
) -> None:
    """Enrol a client. Its token is shown once: hand it to the data holder."""
    from lethe.tokens import hand_over, refuse_existing

    refuse_existing(token_out)
    carried = None if told.canary is None else {"target_class": told.canary[0], "seed": told.canary[1]}
    try:
        costs = None if told.resources is None else loads(told.resources)
    except ValueError as error:
        raise CommandFailed(f"--resources is not JSON: {error}", exit_code=UNUSABLE) from error
    with connect(context) as client:
        issued = client.clients.enrol(
            name, federation=federation, canary=carried, max_samples=told.max_samples, resources=costs
        )
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


@app.command(
    **examples(
        "lethe --url https://lethe.example.org clients kit hospital-a",
        "lethe clients kit hospital-a --coordinator https://lethe.example.org --ca-file ca.pem -o hospital-a.tar.gz",
    )
)
def kit(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The client; it is enrolled if it is not yet.")],
    federation: Federation = None,
    coordinator: Annotated[
        str | None, typer.Option(help="The address that its worker is to use; the one of this command when absent.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Certificate authorities to trust (PEM).")
    ] = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="The client is enrolled: give it a new token, the old one ends.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="NAME-kit.tar.gz when absent.")] = None,
) -> None:
    """Everything that a data holder needs to join, in one archive: token, command, certificate authorities, a compose
    file, and what to do. It holds the token: hand it over as you would a password."""
    from importlib.metadata import version

    from lethe.kits import Kit
    from lethe.printing import say
    from lethe.tokens import refuse_existing

    out = output or Path(f"{name}-kit.tar.gz")
    refuse_existing(out)
    ca = None if ca_file is None else ca_file.read_bytes()
    with connect(context) as client:
        address = coordinator or client.url
        if rotate:
            issued = client.clients.get(name, federation=federation).rotate()
        else:
            issued = client.clients.enrol(name, federation=federation)
    Kit(name, address, issued.token, version("lethe"), ca).write(out)
    say(f"{out}: the kit of client {name}; its token is in there and nowhere else")
    if address.startswith("http://"):
        say("note: its worker will talk in the clear; give --coordinator https://… unless this is a trial")
