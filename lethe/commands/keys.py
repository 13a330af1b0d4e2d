"""`lethe keys`: the key that certificates are signed with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.commands import evidence
from lethe.failures import CommandFailed
from lethe.process import DatabaseUrl, Home
from lethe.target import AsJson, connect, examples

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

app = typer.Typer(no_args_is_help=True, help="The keys that certificates are, and were, signed with.")


@app.callback()
def keys() -> None:
    pass


@app.command("list", **examples("lethe keys list"))
def list_(context: typer.Context, json: AsJson = False) -> None:
    """Every key that the coordinator ever signed with, the one that signs now last (over HTTP)."""
    from lethe.printing import Column, print_answers, when

    columns: dict[str, Column] = {
        "key": "key_id",
        "algorithm": "algorithm",
        "from": when("from"),
        "until": when("until"),
    }
    with connect(context) as client:
        print_answers(client.keys(), columns, as_json=json)


@app.command(**examples("lethe keys rotate", "lethe keys rotate --lost"))
def rotate(
    home: Home = None,
    database_url: DatabaseUrl = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="The key on record is lost for good; certificates will say so.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Sign with a new key from now on; run it where the key lies. Earlier certificates verify on with the old public
    key, which stays published; give verifiers the new one: lethe certificates key."""
    from lethe.printing import print_record

    async def carry_out(coordinator: Coordinator) -> dict[str, Any]:
        from coordinator.runtime import remedies

        try:
            key, incident = await remedies.rotate(coordinator.database, coordinator.signing_keys, is_lost=lost)
        except remedies.NotNeeded as error:
            raise CommandFailed(str(error), next_step="lethe keys rotate") from error
        return {"key_id": key.key_id, **evidence.described(incident)}

    print_record(asyncio.run(evidence.opened(carry_out, home=home, database_url=database_url)), as_json=json)
