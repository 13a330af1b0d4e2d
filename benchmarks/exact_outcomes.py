"""What happened to the served model of `lethe bench exact` after each erasure, read from a simulation's rows."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.exact_scenarios import SERVED
from benchmarks.exact_setups import DATASETS
from benchmarks.experiments import Cell
from lethe.simulation.results import ErasureRow, Results, RoundRow


@dataclass(frozen=True)
class Recovery:
    """What happened to the served model after one erasure."""

    leaver: str
    rounds_to_threshold: int | None
    accuracy_before: float | None
    accuracies: list[float | None]
    """Of the first clean model and of the rounds after it."""
    updates_redone: int

    @property
    def accuracy_after(self) -> float | None:
        """At the end of what was trained after the erasure."""
        return next((accuracy for accuracy in reversed(self.accuracies) if accuracy is not None), None)


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    trained: list[float | None]
    """Accuracies of the rounds before the first erasure, the initial model in front."""
    recoveries: list[Recovery]


def outcome_of(cell: Cell, results: Results) -> Outcome:
    served = served_rounds(results)
    threshold = DATASETS[cell.dataset].threshold
    recoveries = []
    for number, erasure in enumerate(results.erasures, start=1):
        before = [row.accuracy for row in served if _stretch(row) < number and row.accuracy is not None]
        after = [row for row in served if _stretch(row) == number and row.kind in ("aggregate", "merge")]
        back = (n for n, row in enumerate(after, 1) if (row.accuracy or 0.0) >= threshold)
        recoveries.append(
            Recovery(
                leaver=", ".join(erasure.subjects),
                rounds_to_threshold=next((_rounds(results, erasure, after[n - 1], n) for n in back), None),
                accuracy_before=before[-1] if before else None,
                accuracies=[_first_clean(results, erasure), *(row.accuracy for row in after)],
                updates_redone=erasure.updates_redone,
            )
        )
    return Outcome(cell, [row.accuracy for row in served if _stretch(row) == 0], recoveries)


def _stretch(row: RoundRow) -> int:
    """How many erasures came before. Models are merged when training has ended and again after the only erasure."""
    return min(row.round - 1, 1) if row.kind == "merge" else row.epoch


def _rounds(results: Results, erasure: ErasureRow, row: RoundRow, number: int) -> int:
    """After how many rounds the model was made: its own, or those that the cut cohorts trained before the merge."""
    if row.kind != "merge":
        return number
    cut = [one for one in results.rounds if one.cohort in erasure.cohorts and one.epoch > 0 and one.kind == "aggregate"]
    return max((one.round for one in cut), default=0)


def _first_clean(results: Results, erasure: ErasureRow) -> float | None:
    """What was served at the instant of the fence: the model gone back to, or made of those that were left."""
    return next(row.best for row in results.served if row.virtual_s >= (erasure.fenced_s or 0.0))


def served_rounds(results: Results) -> list[RoundRow]:
    names = {row.cohort for row in results.rounds}
    served = next(name for name in SERVED if name in names)
    return [row for row in results.rounds if row.cohort == served]
