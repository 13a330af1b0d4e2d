"""Exact unlearning: how many rounds until the served model is back at a threshold after a client was erased.

A federation of ten clients trains, client 1 is erased; in other variants clients 3 and 5 follow, newcomers join, or
something else differs. Retraining starts from the initial model, BMT from the mean of the remaining clients' models,
MMT from the largest parts of an influence tree without the client. Simulated in virtual time, on the real coordinator.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.exact_outcomes import Outcome, outcome_of
from benchmarks.exact_report import report_of
from benchmarks.exact_scenarios import METHODS, cell
from benchmarks.exact_setups import DATASETS
from benchmarks.exact_variants import FAMILIES, NAMED, chosen
from benchmarks.experiments import Cell, command_of, options_of, run_cells
from benchmarks.figures import Printer
from benchmarks.report import write

DEFAULT_VARIANTS: Final[Mapping[str, Sequence[str]]] = {"small": ["main"], "full": ["all"]}
DEFAULT_DATASETS: Final[Mapping[str, Sequence[str]]] = {
    "small": ["mnist", "fashion-mnist"],
    "full": [name for name in DATASETS if name not in ("digits", "cifar10-small")],
}


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
        "accuracy_after": first.accuracy_after,
        "updates_redone": first.updates_redone,
        "rounds_to_threshold_each": [recovery.rounds_to_threshold for recovery in outcome.recoveries],
        "accuracy_after_each": [recovery.accuracy_after for recovery in outcome.recoveries],
    }


def cells_of(options: argparse.Namespace) -> list[Cell]:
    variants = [(name, NAMED[name].variant) for name in chosen(options.variant or DEFAULT_VARIANTS[options.preset])]
    return [
        cell(dataset, method, seed, name, variant, options.preset, options.rounds)
        for name, variant in variants
        for dataset in options.dataset or DEFAULT_DATASETS[options.preset]
        if dataset in variant.datasets
        for method in variant.methods
        if method in (options.method or METHODS)
        for seed in range(1, options.seeds + 1)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = options_of("exact", __doc__, list(DATASETS), list(METHODS))
    parser.add_argument("--rounds", type=int, help="of training, instead of the preset's own number")
    parser.epilog = f"Variants: all, the families {', '.join(FAMILIES)}, or one of {', '.join(NAMED)}."
    options = parser.parse_args(argv)
    try:
        cells = cells_of(options)
    except ValueError as error:
        parser.error(str(error))
    if not cells:
        parser.error("nothing to do: these variants do not have these data sets and methods")
    printer = Printer(as_json=options.json, benchmark="exact")
    outcomes = []
    for done, results in run_cells(cells, options):
        outcomes.append(outcome_of(done, results))
        printer.row(row_of(outcomes[-1]))
    outcomes.sort(key=lambda outcome: cells.index(outcome.cell))
    rounds = [] if options.rounds is None else [f"--rounds {options.rounds}"]
    write(report_of(outcomes, " ".join([command_of("exact", options), *rounds])), options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
