"""Who takes part in an erasure: accuracy while FedEraser rebuilds a model, by the policy that selects who calibrates.

A hundred clients, four fifths of whose samples are of one class; ten are asked in a round. One client is erased, and of
the ninety-nine others a policy selects ten for each stored round. All policies of a seed start from the same model and
history, so differences are paired. Networks of `dqn` are pre-trained first, on other clients and samples, and judged on
test samples that neither they nor any selection ever saw. A client takes a virtual second for an epoch; profiles count.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments import Cell, command_of, options_of, run_cells
from benchmarks.figures import Printer
from benchmarks.report import write
from benchmarks.selection_report import Outcome, report_of
from benchmarks.selection_scenarios import (
    DATASETS,
    LEARNING,
    POLICIES,
    PRESETS,
    VALIDATION_SAMPLES,
    Preset,
    calibration_epochs,
    pretraining_of,
    scenario_of,
)
from lethe.simulation import Results, simulate
from lethe.simulation.coordinator import SimulatedCoordinator, run_to_end
from lethe.simulation.pretraining import pretrain
from lethe.simulation.results import RoundRow
from lethe.simulation.scenario import Scenario, parse
from services.core.seeds import derive
from services.data.data_folders import VARIABLE, folders_of
from services.data.sources import load
from services.tensors import codec
from services.tensors.streams import StoredFile

TESTED_AT_MOST: Final = 5000


@dataclass(frozen=True)
class Judged(Results):
    """Results with the accuracy of each rebuilt model, and what it has cost so far."""

    curve: Sequence[tuple[int, float, float]] = ()
    """(round, accuracy, client-seconds since the erasure)."""


def play(cell: Cell, preset: Preset) -> Results:
    scenario = parse(cell.scenario, cell.name)
    with tempfile.TemporaryDirectory(prefix="lethe-selection-") as folder:
        results = simulate(scenario, Path(folder), progress=cell.watch)
        rebuilt = [row for row in results.rounds if row.kind == "forgotten"]
        accuracy_of = _accuracies(scenario, Path(folder), rebuilt)
    (erasure,) = results.erasures
    if erasure.status != "completed":
        raise RuntimeError(f"{cell.name}: the erasure is {erasure.status}: {erasure.reason}")
    asked = [row.participants for row in rebuilt[1:]]  # the first stored round is applied as it is
    spent = float(erasure.updates_redone - sum(asked))  # profiles, an epoch each
    curve = [(rebuilt[0].round, accuracy_of[rebuilt[0].digest], 0.0)]
    for row in rebuilt[1:]:
        spent += row.participants * calibration_epochs(preset)
        curve.append((row.round, accuracy_of[row.digest], spent))
    return Judged(**{one.name: getattr(results, one.name) for one in fields(results)}, curve=tuple(curve))


def _accuracies(scenario: Scenario, home: Path, rows: Sequence[RoundRow]) -> dict[str, float]:
    """On test samples that no selection was rewarded for."""
    import numpy as np
    import torch

    from services.data.dataset import Dataset
    from services.models.build import build
    from services.models.weights import load_weights
    from services.training.evaluation import evaluate
    from services.training.task import Classifier

    data = load(scenario.data.source, folders_of(os.environ))
    order = np.random.default_rng(derive(scenario.seed, "test-samples")).permutation(len(data.y_test))
    left = np.sort(order[VALIDATION_SAMPLES:][:TESTED_AT_MOST])
    task = Classifier(Dataset(data.x_test[:1], data.y_test[:1], data.x_test[left], data.y_test[left]))
    digests = sorted({row.digest for row in rows})
    found = {}
    for digest, stored in run_to_end(_fetched(SimulatedCoordinator(home, scenario.seed), digests)).items():
        model = build(scenario.run.model, seed=0)
        load_weights(model, stored)
        found[digest] = evaluate(task, model, torch.device("cpu"))["accuracy"]
    return found


async def _fetched(coordinator: SimulatedCoordinator, digests: Sequence[str]) -> dict[str, StoredFile]:
    await coordinator.open()
    try:
        return {digest: StoredFile(path) for digest, path in (await coordinator.fetch(digests)).items()}
    finally:
        await coordinator.close()


def _pretrain(dataset: str, policy: str, preset: Preset, path: Path) -> Path:
    def told(episode: int, figures: dict[str, float]) -> None:
        text = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
        print(f"pre-training {policy} on {dataset}, {episode}/{preset.episodes}: {text}", file=sys.stderr, flush=True)

    scenario = parse(pretraining_of(dataset, policy, preset), f"pre-training of {policy} on {dataset}")
    codec.write_file(path, pretrain(scenario, preset.episodes, told, folders=folders_of(os.environ)))
    return path


def networks_of(
    datasets: Sequence[str], policies: Sequence[str], preset: Preset, options: argparse.Namespace, folder: Path
) -> dict[tuple[str, str], Path]:
    """Pre-trained, one for each data set and policy that learns."""
    wanted = [(dataset, policy) for policy in policies if policy in LEARNING for dataset in datasets]
    started = time.monotonic()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        futures = {
            (dataset, policy): pool.submit(
                _pretrain, dataset, policy, preset, folder / f"{policy}-{dataset}.safetensors"
            )
            for dataset, policy in wanted
        }
        found = {key: future.result() for key, future in futures.items()}
    if found:
        print(f"pre-trained in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = options_of("selection", __doc__, list(DATASETS), list(POLICIES))
    parser.set_defaults(seeds=5)
    options = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.data is not None:
        os.environ[VARIABLE] = os.pathsep.join(filter(None, (str(options.data.resolve()), os.environ.get(VARIABLE))))
    preset = PRESETS[options.preset]
    datasets, policies = options.dataset or preset.datasets, options.method or preset.policies
    printer = Printer(as_json=options.json, benchmark="selection")
    options.out.mkdir(parents=True, exist_ok=True)
    networks = networks_of(datasets, policies, preset, options, options.out)
    cells = [
        Cell(
            dataset,
            policy,
            seed,
            "federaser",
            scenario_of(dataset, policy, seed, preset, networks.get((dataset, policy))),
            play=partial(play, preset=preset),
        )
        for dataset in datasets
        for seed in range(1, options.seeds + 1)
        for policy in policies
    ]
    outcomes: list[Outcome] = []
    for cell, results in run_cells(cells, options):
        assert isinstance(results, Judged)
        outcomes.append(Outcome(cell.dataset, cell.method, cell.seed, tuple(results.curve)))
        for round, accuracy, client_s in results.curve:
            row: dict[str, Any] = {"dataset": cell.dataset, "policy": cell.method, "seed": cell.seed}
            printer.row(row | {"round": round, "accuracy": accuracy, "client_s": client_s})
    write(report_of(outcomes, preset, command_of("selection", options)), options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
