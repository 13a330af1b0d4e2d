"""Asynchronous unlearning: how much virtual time until the target accuracy, when clients are erased in the middle.

Clients have Pareto-distributed speeds. They train in synchronous rounds (fedavg), asynchronous steps (fedbuff), or in
five clusters that are asynchronous by themselves, drawn at random or assigned by KNOT. At a given instant 1, 2 or 4
clients are erased by retraining; counted is the time from there until the best line serves the target accuracy (with
a language model: the target perplexity). Beside, everybody together erases by rapid retraining and by FedEraser.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from benchmarks.experiments import Cell, command_of, options_of, run_cells
from benchmarks.figures import Printer
from benchmarks.knot_outcomes import outcome_of, row_of
from benchmarks.knot_report import report_of
from benchmarks.knot_scenarios import DATASETS, METHODS, PRESETS, VARIANTS, cell
from benchmarks.report import write

ALL: Final = "all"


def cells_of(options: argparse.Namespace) -> list[Cell]:
    preset = PRESETS[options.preset]
    asked = options.variant or preset.variants
    return [
        cell(dataset, method, seed, variant, options.preset)
        for dataset in options.dataset or preset.datasets
        for variant in (VARIANTS if ALL in asked else asked)
        for method in options.method or preset.methods
        for seed in range(1, options.seeds + 1)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = options_of("knot", __doc__, list(DATASETS), list(METHODS))
    options = parser.parse_args(argv)
    if unknown := set(options.variant or ()) - {*VARIANTS, ALL}:
        parser.error(f"no variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}, and {ALL} of them")
    cells = cells_of(options)
    printer = Printer(as_json=options.json, benchmark="knot")
    outcomes = []
    for done, results in run_cells(cells, options):
        outcomes.append(outcome_of(done, results))
        printer.row(row_of(outcomes[-1]))
    outcomes.sort(key=lambda outcome: cells.index(outcome.cell))
    write(report_of(outcomes, command_of("knot", options)), options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
