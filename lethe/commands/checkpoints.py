"""`lethe checkpoints`: models, what they were made of, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lethe.target import AsJson, connect, examples

app = typer.Typer(no_args_is_help=True, help="Checkpoints: the models of a run, their lineage and bytes.")

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name, if only one run has it, or id.")]
CheckpointName = Annotated[
    str, typer.Argument(metavar="ID|RUN", help="The checkpoint's id, or a run's name: its newest served model.")
]


def _accuracy(checkpoint: Mapping[str, Any]) -> str | None:
    from services.core.model_figures import accuracy_of

    accuracy = accuracy_of(checkpoint["metrics"])
    return None if accuracy is None else f"{accuracy:.4f}"


@app.command("list", **examples("lethe checkpoints list digits", "lethe checkpoints list digits --json | jq -r .id"))
def list_(context: typer.Context, run: RunName, json: AsJson = False) -> None:
    """Checkpoints of a run, one per published round."""
    from lethe.printing import Column, print_records

    columns: dict[str, Column] = {
        "round": "round",
        "accuracy": _accuracy,
        "kind": "kind",
        "bytes": "bytes",
        "cohort": "cohort",
        "head": "is_head",
        "superseded": lambda checkpoint: checkpoint.get("superseded_by") is not None,
        "id": "id",
        "digest": lambda checkpoint: checkpoint["digest"][:19] + "…",
    }
    with connect(context) as client:
        found = client.run(run)
        print_records(client.pages(f"/v1/runs/{found['id']}/checkpoints"), columns, as_json=json)


@app.command(**examples("lethe checkpoints show digits", "lethe checkpoints show 0199d3a2-7a53-7cc0-b7a1-0d7b7e0f3c55"))
def show(context: typer.Context, checkpoint: CheckpointName, json: AsJson = False) -> None:
    """One checkpoint: digest, round, figures."""
    from lethe.printing import print_record

    with connect(context) as client:
        print_record(client.get(f"/v1/checkpoints/{client.checkpoint_id(checkpoint)}"), as_json=json)


@app.command(**examples("lethe checkpoints lineage digits"))
def lineage(context: typer.Context, checkpoint: CheckpointName, json: AsJson = False) -> None:
    """Whose updates, with which weights, made this model, and from which base."""
    from lethe.printing import Column, print_record, print_records

    with connect(context) as client:
        found = client.get(f"/v1/checkpoints/{client.checkpoint_id(checkpoint)}/lineage")
    if json:
        print_record(found, as_json=True)
        return
    print(lineage_in_one_line(found))
    columns: dict[str, Column] = {
        "client": "client_name",
        "weight": "weight",
        "samples": "num_samples",
        "staleness": "staleness",
        "stored": "stored",
        "update": lambda contribution: contribution["digest"][:19] + "…",
    }
    if found["contributions"]:
        print_records(found["contributions"], columns, as_json=False)
    parents: dict[str, Column] = {
        "cohort": "cohort",
        "round": "round",
        "weight": "weight",
        "stored": "stored",
        "model": lambda parent: parent["digest"][:19] + "…",
    }
    if found.get("parents"):
        print_records(found["parents"], parents, as_json=False)


def lineage_in_one_line(lineage: Mapping[str, Any]) -> str:
    checkpoint, base = lineage["checkpoint"], lineage["base"]
    made_of = " = the initial model"
    if base:
        made_of = f" = round {base['round']} + {len(lineage['contributions'])} updates"
    elif lineage.get("parents"):
        made_of = f" = {lineage['made_by']} of {len(lineage['parents'])} models"
    return (
        f"round {checkpoint['round']} ({checkpoint['digest'][:19]}…){made_of}; "
        f"{len(lineage['ancestors'])} ancestors; data of {', '.join(lineage['clients']) or 'nobody'}"
    )


@app.command(**examples("lethe checkpoints download digits -o model.safetensors"))
def download(
    context: typer.Context,
    checkpoint: CheckpointName,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the safetensors file.")],
) -> None:
    """The model's bytes, as a safetensors file."""
    from lethe.printing import say

    with connect(context) as client:
        num_bytes = client.download(f"/v1/checkpoints/{client.checkpoint_id(checkpoint)}/model", output)
    say(f"{output}: {num_bytes} bytes")
