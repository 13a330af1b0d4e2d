"""What federated methods are compared with in `lethe bench exact`: an ensemble of clients that train alone (SISA), and
no federation at all but one model trained on everybody's samples (Standalone)."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.experiments import Cell
from lethe.simulation import Results, Scenario, simulate
from lethe.simulation.client_data import ClientData
from lethe.simulation.coordinator import fetch_models
from lethe.simulation.results import ErasureRow, RoundRow, ServedRow, SummaryRow
from lethe.simulation.scenario import parse
from services.core.seeds import derive
from services.data.data_folders import folders_of
from services.data.dataset import Dataset
from services.tensors.streams import StoredFile
from services.training.task import Classifier

if TYPE_CHECKING:
    from torch import Tensor

ENSEMBLE: Final = "ensemble"
"""The name that the judged ensemble has among the cohorts."""


def play_ensemble(cell: Cell) -> Results:
    """Each client's own line is simulated, with the erasure; what is left of them is judged as an ensemble.

    The leaver's models are gone then, so the ensemble with it is judged in a simulation without the erasure. Isolated
    lines do not depend on each other: those of the others are the same in both.
    """
    scenario = parse(cell.scenario, cell.name)
    (event,) = scenario.script
    trained = event.after_round or 0
    stop = scenario.run.stop.model_copy(update={"rounds": trained})
    whole = scenario.model_copy(update={"script": [], "run": scenario.run.model_copy(update={"stop": stop})})
    with TemporaryDirectory(prefix="lethe-ensemble-") as home:
        results = simulate(whole, Path(home, "whole"))
        before = _ensembles(whole, results, Path(home, "whole"), range(1, trained + 1))
        results = simulate(scenario, Path(home, "cut"))
        after = _ensembles(scenario, results, Path(home, "cut"), range(trained, scenario.run.stop.rounds + 1))
    return _results(ENSEMBLE, before, after, results.erasures[0], results.summary, results.wall_s)


def _ensembles(scenario: Scenario, results: Results, home: Path, rounds: Sequence[int]) -> list[float]:
    """The accuracies of the mean softmax of all lines that were not cut, in each of these rounds."""
    cut = {cohort for erasure in results.erasures for cohort in erasure.cohorts}
    kept = [row for row in results.rounds if row.kind == "aggregate" and row.cohort not in cut]
    judge = Judge(scenario)
    with TemporaryDirectory(prefix="lethe-models-") as folder:
        files = fetch_models(home, {row.digest for row in kept}, Path(folder))
        return [
            judge.accuracy_of([files[row.digest] for row in kept if row.round == number and row.digest in files])
            for number in rounds
        ]


class Judge:
    """Of ensembles, on the scenario's test samples."""

    def __init__(self, scenario: Scenario) -> None:
        test = _client_data(scenario).test_set()
        self._task = Classifier(Dataset(test["x"][:1], test["y"][:1], test["x"], test["y"]))
        self._model = self._task.model(scenario.run.model)
        self._labels = test["y"]

    def accuracy_of(self, models: Collection[Path]) -> float:
        from services.models.weights import load_weights

        total = np.zeros(())
        for path in models:
            load_weights(self._model, StoredFile(path))
            total = total + self._softmax().numpy()
        return float((total.argmax(axis=1) == self._labels).mean())

    def _softmax(self) -> Tensor:
        import torch

        self._model.eval()
        with torch.inference_mode():
            logits = [self._task.predict(self._model, batch)[0] for batch in self._task.eval_batches(512)]
            return torch.cat(logits).softmax(dim=1)


def play_pooled(cell: Cell) -> Results:
    """One model on everybody's samples, then another from the same beginning on those of all but the leaver.

    A round is one epoch over as many samples as one client has, drawn from the pool: as many steps as a client takes.
    """
    scenario = parse(cell.scenario, cell.name)
    (event,) = scenario.script
    leavers = event.erase or []
    trained = event.after_round or 0
    before = _pooled(scenario, (), trained)
    after = _pooled(scenario, leavers, scenario.run.stop.rounds - trained)
    at = float(trained)
    erasure = ErasureRow(leavers, "retrain", "completed", None, at, at, at, at + len(after), ["pool"], 0, 0.0)
    summary = SummaryRow(at + len(after) - 1, "completed", None, 0, 0.0, {})
    return _results("all", before[1:], after, erasure, summary, 0.0)


def _pooled(scenario: Scenario, left_out: Collection[str], rounds: int) -> list[float]:
    """The accuracies of the initial model and after each round."""
    import torch

    from services.models.build import build
    from services.training.evaluation import evaluate
    from services.training.local import train

    torch.set_num_threads(1)
    data, device = _client_data(scenario), torch.device("cpu")
    arrays = [data.task_of(name).train_arrays for name in scenario.names if name not in left_out]
    x, y = (np.concatenate(parts) for parts in zip(*arrays, strict=True))
    test = data.test_set()
    share = len(y) // len(arrays)
    draws = np.random.default_rng(derive(scenario.seed, "pool"))
    model = build(scenario.run.model, derive(scenario.run.seed, "init"))
    accuracies = []
    for number in range(rounds + 1):
        rows = draws.permutation(len(y))[:share]
        task = Classifier(Dataset(x[rows], y[rows], test["x"], test["y"]))
        if number:
            train(task, model, scenario.run.local, derive(scenario.seed, "pool", number), device)
        accuracies.append(evaluate(task, model, device)["accuracy"])
    return accuracies


def _client_data(scenario: Scenario) -> ClientData:
    return ClientData(scenario, folders_of(os.environ))


def _results(
    cohort: str,
    before: Sequence[float],
    after: Sequence[float],
    erasure: ErasureRow,
    summary: SummaryRow,
    wall_s: float,
) -> Results:
    """As of a simulation with one line that is judged every round. The first of `after` is the first clean model."""
    rounds = [
        RoundRow(float(number), cohort, epoch, number, "aggregate", accuracy, None, 0, 0.0, "")
        for epoch, accuracies in enumerate((before, after[1:]))
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    served = [ServedRow(erasure.fenced_s or 0.0, after[0], after[0], after[0], 1)]
    return Results(rounds, served, [erasure], summary, wall_s)
