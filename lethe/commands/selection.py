"""`lethe selection`: pre-train a selection policy that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lethe.failures import require
from lethe.target import examples

app = typer.Typer(no_args_is_help=True, help="Pre-train a selection policy that learns.")


@app.command(
    **examples(
        "lethe selection train scenario.yaml --out dqn.safetensors",
        "lethe blobs upload dqn.safetensors   then name its digest as selection.state of a run",
    )
)
def train(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A YAML file; its run.selection learns.")],
    out: Annotated[Path, typer.Option(help="Where the network goes.")] = Path("selection.safetensors"),
    episodes: Annotated[
        int, typer.Option(min=1, help="How often the scenario is played, each time with a new seed.")
    ] = 20,
    start: Annotated[Path | None, typer.Option(help="A network to go on from.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data files are looked for first; then in the folders of LETHE_DATA.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the first episode, instead of the scenario's.")] = None,
) -> None:
    """Play a scenario many times, each time with other clients and samples, and keep what its selection has learnt.

    The same scenario, seed and number of episodes give the same file, bit for bit.
    """
    require("compute,worker", "sqlalchemy", "torch")
    import os

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from lethe.printing import say
    from lethe.simulation.pretraining import pretrain
    from lethe.simulation.scenario import read
    from services.core import digests
    from services.data.data_folders import folders_of
    from services.tensors import codec

    wanted = read(scenario, {} if seed is None else {"seed": seed})
    folders = folders_of(os.environ)

    def told(episode: int, figures: dict[str, float]) -> None:
        text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        say(f"episode {episode} of {episodes}: {text}")

    places = folders if data_dir is None else (data_dir, *folders)
    codec.write_file(out, pretrain(wanted, episodes, told, folders=places, start=start))
    typer.echo(digests.of_bytes(out.read_bytes()))
    say(f"the network is in {out}; upload it with `lethe blobs upload {out}`")
