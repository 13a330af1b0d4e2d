"""`lethe credentials`: tokens of people and programs that operate a federation."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from lethe.commands.clients import Federation, TokenOut
from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Credentials: tokens of operators, by role.")


class Role(StrEnum):
    viewer = "viewer"
    operator = "operator"
    compliance = "compliance"
    admin = "admin"


@app.command(**examples("lethe credentials create --role viewer --label dashboard --token-out viewer.token"))
def create(
    context: typer.Context,
    role: Annotated[Role, typer.Option(help="What its holder may do.")],
    label: Annotated[str, typer.Option(help="Whom or what it is for.")] = "",
    federation: Federation = None,
    token_out: TokenOut = None,
    json: AsJson = False,
) -> None:
    """Issue a token for a role. It is shown once."""
    from lethe.tokens import hand_over, refuse_existing

    refuse_existing(token_out)
    with connect(context) as client:
        issued = client.credentials.create(role.value, label=label, federation=federation)
    hand_over(issued.document, token_out, what=f"{role.value} credential {issued.id}", as_json=json)


@app.command("list", **examples("lethe credentials list -f hospitals"))
def list_(context: typer.Context, federation: Federation = None, json: AsJson = False) -> None:
    """Credentials of a federation, without their tokens."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "id": "id",
        "role": "role",
        "label": "label",
        "client": lambda one: one.get("client_name") or one["client_id"],  # older coordinators tell no name
        "created": when("created_at"),
        "revoked": when("revoked_at"),
    }
    with connect(context) as client:
        print_answers(client.credentials.list(federation=federation), columns, as_json=json)


@app.command(**examples("lethe credentials revoke 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55"))
def revoke(context: typer.Context, id: Annotated[str, typer.Argument(help="The credential's id.")]) -> None:
    """Make a token void at once."""
    from lethe.printing import say

    with connect(context) as client:
        client.credentials.revoke(id)
    say(f"credential {id} revoked")
