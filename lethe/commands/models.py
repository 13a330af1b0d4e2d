"""`lethe models`: the weights that a run starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import AsJson, examples

app = typer.Typer(no_args_is_help=True, help="Models: make the weights that a run starts from.")


@app.command(**examples("lethe models prepare run.yaml model.safetensors --out init.safetensors"))
def prepare(
    run_file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The run, for its model and seed.")],
    pretrained: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Weights of GPT-2, as transformers writes them.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write; name it as `init` in the run file.")],
    json: AsJson = False,
) -> None:
    """Make a run's first weights from pretrained ones on this machine. The classifier's head is drawn from the seed."""
    require("language", "torch", "transformers")
    from lethe.printing import print_record
    from lethe.run_file import read
    from services.core.errors import Rejected
    from services.models.build import build
    from services.models.pretrained import load_pretrained
    from services.models.weights import save_tensors
    from services.wire.v1.runs import ModelSpec

    document = read(run_file)
    spec = ModelSpec.model_validate(document["model"])
    try:
        model = build(spec, document.get("seed", 0))
        load_pretrained(model, pretrained)
    except Rejected as error:
        raise CommandFailed(error.detail, exit_code=UNUSABLE) from error
    save_tensors(out, model.state_dict())
    num_parameters = sum(param.numel() for param in model.parameters())
    print_record({"model": spec.name, "num_parameters": num_parameters, "file": str(out)}, as_json=json)
