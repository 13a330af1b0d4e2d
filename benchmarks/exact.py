"""Exact unlearning: how many rounds until the served model is back at a threshold after a client was erased.

A federation of ten clients trains, client 1 is erased, then (preset full) clients 3 and 5, with training in between.
Retraining starts from the initial model, BMT from the mean of the remaining clients' own models, MMT from the largest
parts of an influence tree without the client. Simulated in virtual time, on the real coordinator.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.exact_scenarios import DATASETS, METHODS, PRESETS, SERVED, cell
from benchmarks.experiments import Cell, command_of, options_of, run_cells
from benchmarks.figures import Printer
from benchmarks.plots import Bars, Curves, Line, Plot, bar
from benchmarks.report import Report, Section, Table, spread, write
from lethe.simulation.results import ErasureRow, Results, RoundRow

SHOWN_BEFORE: Final = 20
"""Rounds before the erasure that the plots show."""
INTRODUCTION: Final = [
    "Ten clients train together; client i holds mostly class i. Then client 1 is erased, and with the preset full, "
    "after as many rounds again, clients 3 and 5. Counted are the rounds from there until the served model has the "
    "threshold's test accuracy again; it is judged after each of them, so 1 is the least. –: it was not reached. The "
    "test set has the leavers' classes too.",
    "`retrain` goes back to the initial model. `bmt` averages the models that each client trained alone. `mmt` "
    "averages the largest parts of an influence tree without the leaver. All are exact: nothing of the leaver is in "
    "the new model.",
    "Weight decay is 0. The paper prints 0.1, with which its thresholds are out of reach here after an erasure "
    "(variant weight-decay-0.1 of the preset full). Its other settings are kept.",
    "Plots show the mean over the seeds and their range; a seed ends where it was stopped.",
    "SISA and Standalone are left out: an ensemble is not one model that the coordinator could judge, and pooled data "
    "are no federation. So are language models: the Llama weights of the paper are not at hand.",
]


@dataclass(frozen=True)
class Recovery:
    """What happened to the served model after one erasure."""

    leaver: str
    rounds_to_threshold: int | None
    accuracy_before: float | None
    accuracies: list[float | None]
    """Of the first clean model and of the rounds after it."""
    updates_redone: int


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


def row_of(outcome: Outcome) -> dict[str, Any]:
    cell, first = outcome.cell, outcome.recoveries[0]
    return {
        "dataset": cell.dataset,
        "variant": cell.variant,
        "method": cell.method,
        "seed": cell.seed,
        "rounds_to_threshold": first.rounds_to_threshold,
        "threshold": DATASETS[cell.dataset].threshold,
        "paper": DATASETS[cell.dataset].paper.get(cell.method) if cell.variant == "main" else None,
        "accuracy_before": first.accuracy_before,
        "accuracy_first_clean": first.accuracies[0],
        "updates_redone": first.updates_redone,
        "rounds_to_threshold_each": [recovery.rounds_to_threshold for recovery in outcome.recoveries],
    }


def cells_of(options: argparse.Namespace) -> list[Cell]:
    return [
        cell(dataset, method, seed, name, variant, options.rounds)
        for name, variant in PRESETS[options.preset].items()
        if name in (options.variant or PRESETS[options.preset])
        for dataset in variant.datasets
        if dataset in (options.dataset or set(DATASETS) - {"digits"})
        for method in variant.methods
        if method in (options.method or METHODS)
        for seed in range(1, options.seeds + 1)
    ]


def report_of(outcomes: Sequence[Outcome], command: str) -> Report:
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.cell.dataset, outcome.cell.variant), []).append(outcome)
    return Report(
        title="Exact unlearning: rounds until the model is back",
        command=command,
        seeds=sorted({outcome.cell.seed for outcome in outcomes}),
        paragraphs=INTRODUCTION,
        sections=[_section(dataset, variant, found) for (dataset, variant), found in groups.items()],
    )


def _section(dataset: str, variant: str, outcomes: Sequence[Outcome]) -> Section:
    setup = DATASETS[dataset]
    by_method: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_method.setdefault(outcome.cell.method, []).append(outcome)
    paper = setup.paper if variant == "main" else {}
    threshold = f"{setup.threshold:.0%} test accuracy"
    tables = [
        Table(
            f"After the first erasure: rounds to {threshold}, mean ± sd",
            ["method", "rounds", "each seed", "paper", "accuracy before (%)", "of the first clean model (%)"],
            [
                [
                    method,
                    spread(one.recoveries[0].rounds_to_threshold for one in found),
                    ", ".join(_number(one.recoveries[0].rounds_to_threshold) for one in found),
                    paper.get(method),
                    spread(_percent(one.recoveries[0].accuracy_before) for one in found),
                    spread(_percent(one.recoveries[0].accuracies[0]) for one in found),
                ]
                for method, found in by_method.items()
            ],
        )
    ]
    num_erasures = max(len(outcome.recoveries) for outcome in outcomes)
    if num_erasures > 1:
        columns = ["method", *(f"erasure {number + 1}" for number in range(num_erasures))]
        tables.append(
            Table(
                f"Rounds to {threshold} after each erasure, mean ± sd",
                columns,
                [
                    [method, *(spread(o.recoveries[n].rounds_to_threshold for o in found) for n in range(num_erasures))]
                    for method, found in by_method.items()
                ],
            )
        )
    return Section(f"{dataset}, {variant}", (), tables, _plots(dataset, variant, by_method, paper))


def _plots(
    dataset: str, variant: str, by_method: Mapping[str, Sequence[Outcome]], paper: Mapping[str, int]
) -> list[Plot]:
    title = f"{dataset}, {variant}"
    curves = Curves(
        f"{title}: accuracy around the first erasure",
        "rounds since the erasure",
        "test accuracy (%)",
        [_curve(method, found) for method, found in by_method.items()],
        {"erasure": 0.0},
        ("threshold", 100 * DATASETS[dataset].threshold),
    )
    ours = [bar(one.recoveries[0].rounds_to_threshold for one in found) for found in by_method.values()]
    theirs = [(float(paper[method]), 0.0) if method in paper else None for method in by_method]
    series = {"ours (mean, sd)": ours, "paper": theirs} if paper else {"ours (mean, sd)": ours}
    return [curves, Bars(f"{title}: rounds to the threshold", "rounds", list(by_method), series)]


def _curve(method: str, outcomes: Sequence[Outcome]) -> Line:
    """The mean over the seeds, and their range; a seed that has ended is left out from there on."""
    values: dict[int, list[float]] = {}
    for outcome in outcomes:
        before = outcome.trained[-SHOWN_BEFORE:]
        for number, accuracy in enumerate([*before, *outcome.recoveries[0].accuracies], start=-len(before)):
            if accuracy is not None:
                values.setdefault(number, []).append(100 * accuracy)
    rounds = sorted(values)
    return Line(
        method,
        rounds,
        [statistics.fmean(values[number]) for number in rounds],
        [min(values[number]) for number in rounds],
        [max(values[number]) for number in rounds],
    )


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    parser = options_of("exact", __doc__, list(DATASETS), list(METHODS))
    parser.add_argument("--rounds", type=int, help="of training, instead of the data set's own number")
    options = parser.parse_args(argv)
    cells = cells_of(options)
    if not cells:
        parser.error(f"nothing to do: preset {options.preset} has the variants {', '.join(PRESETS[options.preset])}")
    printer = Printer(as_json=options.json, benchmark="exact")
    outcomes = []
    for done, results in run_cells(cells, options):
        outcomes.append(outcome_of(done, results))
        printer.row(row_of(outcomes[-1]))
    outcomes.sort(key=lambda outcome: cells.index(outcome.cell))
    write(report_of(outcomes, command_of("exact", options)), options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
