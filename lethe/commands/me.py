"""`lethe me`: whose credential is in use, and what it may do."""

from __future__ import annotations

import typer

from lethe.target import AsJson, connect, examples

HELP = examples("lethe me", "lethe me --json")


def me(context: typer.Context, json: AsJson = False) -> None:
    """Whose credential this is, and what it may do."""
    from lethe.printing import print_record

    with connect(context) as coordinator:
        found = coordinator.me().document
    print_record(found if json else {**found, "can": ", ".join(found["can"])}, as_json=json)
