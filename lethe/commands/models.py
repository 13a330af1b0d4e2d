"""`lethe models`: the weights that a run starts from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.failures import UNUSABLE, CommandFailed, require
from lethe.target import AsJson, examples

if TYPE_CHECKING:
    from torch import Tensor

    from services.wire.v1.runs import ModelSpec

app = typer.Typer(no_args_is_help=True, help="Models: make the weights that a run starts from.")


@app.command(
    **examples(
        "lethe models init run.yaml --task my_task.py:MyTask --data records.npz",
        "lethe models init --task my_task.py:MyTask --out init.safetensors",
    )
)
def init(
    task: Annotated[
        str, typer.Option(help="Your task, as the workers have it: FILE.py:Class or package.module:Class.")
    ],
    run_file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="The run, for its model's params and seed; else none and 0."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Handed to the task as text, like a worker's --data; any client's will do.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; name it as `init` in the run file.")
    ] = Path("init.safetensors"),
    json: AsJson = False,
) -> None:
    """Draw the first weights of a task of your own on this machine: the coordinator does not know its model.

    The same task, params and seed give the same file.
    """
    require("worker", "torch")
    from lethe.printing import print_record
    from lethe.run_file import read
    from services.models.spec import CUSTOM
    from services.models.weights import save_tensors
    from services.wire.v1.runs import ModelSpec

    document = {} if run_file is None else read(run_file)
    spec = ModelSpec.model_validate(document.get("model", {"name": CUSTOM}))
    if spec.name != CUSTOM:
        raise CommandFailed(
            f"model {spec.name} is built in: the coordinator draws its weights from the run's seed",
            next_step="leave out `init`, or write `model: {name: custom}`",
            exit_code=UNUSABLE,
        )
    tensors = _drawn(task, data, spec, document.get("seed", 0))
    save_tensors(out, tensors)
    num_parameters = sum(tensor.numel() for tensor in tensors.values())
    print_record({"task": task, "num_parameters": num_parameters, "file": str(out)}, as_json=json)


def _drawn(task: str, data: str | None, spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    import os

    from services.core.errors import Rejected
    from services.data.data_folders import folders_of
    from worker.first_weights import first_weights
    from worker.task_loading import TaskUnusable, load_task

    try:
        return first_weights(load_task(task, data, folders_of(os.environ)), spec, seed)
    except TaskUnusable as error:
        raise CommandFailed(str(error), exit_code=UNUSABLE) from error
    except Rejected as rejected:
        raise CommandFailed(rejected.detail, exit_code=UNUSABLE) from rejected
    except Exception as error:  # the task is somebody's own code
        fault = f"{task}: its model() raised {type(error).__name__}: {error}"
        raise CommandFailed(fault, exit_code=UNUSABLE) from error


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
