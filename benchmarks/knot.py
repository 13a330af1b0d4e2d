"""Asynchronous unlearning: how much virtual time until the target accuracy, when clients are erased in the middle.

Clients have Pareto-distributed speeds. They train in synchronous rounds (fedavg), asynchronous steps (fedbuff), or in
five clusters that are asynchronous by themselves, drawn at random or assigned by KNOT. At a given instant 1, 2 or 4
clients are erased by retraining; counted is the time from there until the best line serves the target accuracy.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.experiments import Cell, command_of, options_of, run_cells
from benchmarks.figures import Printer
from benchmarks.knot_scenarios import DATASETS, METHODS, PRESETS, cell
from benchmarks.plots import Bars, Curves, Line, bar
from benchmarks.report import Report, Section, Table, spread, write
from lethe.simulation.results import Results

BASELINE: Final = "fedbuff"
PAPER: Final = Table(
    "The paper's Table II: seconds of FedBuff to the target, and how much less the others need",
    ["method", "CIFAR-10, 75 %", "FEMNIST, 60 %", "Purchase-100, 63.5 %", "Tiny Shakespeare, perplexity 37.5"],
    [
        ["fedbuff", "2036 s", "4272 s", "2381 s", "16293 s"],
        ["federaser", "−2 %", "10 %", "19 %", "–"],
        ["random", "73 %", "45 %", "61 %", "27 %"],
        ["knot", "85 %", "52 %", "64 %", "33 %"],
    ],
)
INTRODUCTION: Final = [
    "Each client has a speed of its own: a task takes 1 s or more, Pareto-distributed with α = 1 and cut at 60 s. "
    "Time is virtual. The erased clients are neither the fastest nor the slowest; what they contributed to goes back "
    "to its newest model without them and trains on. Only the clusters of the leavers do; the others go on.",
    "Counted is the time from the erasure until the best line (with clusters: the best cluster) has the target's test "
    "accuracy. KNOT waits for everybody once before training begins; its erasures come so much later than the others', "
    "and the table has that time in a column of its own.",
    "FEMNIST and Purchase-100 are not at hand: MNIST by real writer and Location-30 stand in for them.",
]


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    erased_s: float
    to_target_s: float | None
    served: list[tuple[float, float, float, float]]
    """(virtual seconds, best, mean, worst accuracy of the lines)."""
    updates_redone: int
    cohorts_cut: int


def outcome_of(cell: Cell, results: Results) -> Outcome:
    (erasure,) = results.erasures
    reached_s = results.reached(DATASETS[cell.dataset].target, after_s=erasure.filed_s)
    return Outcome(
        cell,
        erasure.filed_s,
        None if reached_s is None else reached_s - erasure.filed_s,
        [
            (row.virtual_s, row.best, row.mean, row.worst)
            for row in results.served
            if row.best is not None and row.mean is not None and row.worst is not None
        ],
        erasure.updates_redone,
        len(erasure.cohorts),
    )


def row_of(outcome: Outcome) -> dict[str, Any]:
    cell, setup = outcome.cell, DATASETS[outcome.cell.dataset]
    before = [best for instant, best, _, _ in outcome.served if instant < outcome.erased_s]
    return {
        "dataset": cell.dataset,
        "variant": cell.variant,
        "method": cell.method,
        "seed": cell.seed,
        "virtual_s_to_target": _rounded(outcome.to_target_s),
        "target": setup.target,
        "erased_at_s": _rounded(outcome.erased_s),
        "profiling_s": _rounded(outcome.erased_s - setup.erased_at_s),
        "accuracy_before": before[-1] if before else None,
        "updates_redone": outcome.updates_redone,
        "lines_cut": outcome.cohorts_cut,
    }


def report_of(outcomes: Sequence[Outcome], command: str) -> Report:
    groups: dict[tuple[str, str], dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        groups.setdefault((cell.dataset, cell.variant), {}).setdefault(cell.method, []).append(outcome)
    return Report(
        title="Asynchronous unlearning: time to the target accuracy after an erasure",
        command=command,
        seeds=sorted({outcome.cell.seed for outcome in outcomes}),
        paragraphs=INTRODUCTION,
        sections=[
            Section("The paper's figures", (), [PAPER]),
            *(_section(dataset, variant, found) for (dataset, variant), found in groups.items()),
        ],
    )


def _section(dataset: str, variant: str, by_method: Mapping[str, Sequence[Outcome]]) -> Section:
    setup, title = DATASETS[dataset], f"{dataset}, {variant}"
    table = Table(
        f"Virtual seconds from the erasure to {setup.target:.0%} test accuracy, mean ± sd",
        ["method", "seconds", "each seed", "less than fedbuff", "profiling before (s)", "updates trained again"],
        [
            [
                method,
                spread(one.to_target_s for one in found),
                ", ".join("–" if one.to_target_s is None else f"{one.to_target_s:.0f}" for one in found),
                saved(found, by_method.get(BASELINE, ())),
                spread(one.erased_s - setup.erased_at_s for one in found),
                spread((one.updates_redone for one in found), 0),
            ]
            for method, found in by_method.items()
        ],
    )
    seed = min(one.cell.seed for found in by_method.values() for one in found)
    shown = {method: one for method, found in by_method.items() for one in found if one.cell.seed == seed}
    ends = [one.served[-1][0] - one.erased_s for method, one in shown.items() if method != "fedavg"]
    curves = Curves(
        f"{title}: best line, seed {seed}",
        "virtual time since the erasure (s)",
        "test accuracy (%)",
        [_curve(method, one) for method, one in shown.items()],
        {"erasure": 0.0},
        ("target", 100 * setup.target),
        until=1.5 * max(ends) if ends else None,  # synchronous rounds take many times as long
    )
    bars = Bars(
        f"{title}: time to the target",
        "virtual time (s)",
        list(by_method),
        {"mean and sd over the seeds": [bar(one.to_target_s for one in found) for found in by_method.values()]},
    )
    return Section(title, (), [table], [curves, bars])


def saved(found: Sequence[Outcome], baseline: Sequence[Outcome]) -> str:
    """How much less time than the baseline, of the means over the seeds; a dash where one did not get there."""
    times = [one.to_target_s for one in found if one.to_target_s is not None]
    theirs = [one.to_target_s for one in baseline if one.to_target_s is not None]
    if not theirs or len(times) < len(found) or len(theirs) < len(baseline):
        return "–"
    return f"{1 - statistics.fmean(times) / statistics.fmean(theirs):.0%}"


def _curve(method: str, outcome: Outcome) -> Line:
    """With clusters the band goes from the worst to the best of them."""
    times = [instant - outcome.erased_s for instant, *_ in outcome.served]
    best = [100 * value for _, value, _, _ in outcome.served]
    worst = [100 * value for *_, value in outcome.served]
    return Line(method, times, best, worst, best) if worst != best else Line(method, times, best)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def cells_of(options: argparse.Namespace) -> list[Cell]:
    preset = PRESETS[options.preset]
    return [
        cell(dataset, method, seed, num_erased, preset.share)
        for dataset in options.dataset or preset.datasets
        for num_erased in preset.erased
        if f"{num_erased} erased" in (options.variant or [f"{num_erased} erased"])
        for method in options.method or preset.methods
        for seed in range(1, options.seeds + 1)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = options_of("knot", __doc__, list(DATASETS), list(METHODS))
    options = parser.parse_args(argv)
    cells = cells_of(options)
    if not cells:
        parser.error("nothing to do: variants are '1 erased' and, in the preset full, '2 erased' and '4 erased'")
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
