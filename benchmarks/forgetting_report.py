"""The figures of `lethe bench forgetting`, mean ± sd over the seeds, as tables and plots."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.plots import Bars
from benchmarks.report import Report, Section, Table, spread
from services.audit.spec import BEFORE

Rows = Sequence[Mapping[str, Any]]
FIGURES: Final = {
    "forgotten_accuracy": "forgotten",
    "remaining_accuracy": "remaining",
    "test_accuracy": "test",
    "canary_success": "canary",
    "mia_auc": "MIA AUC",
    "mia_tpr_at_low_fpr": "TPR",
    "mia_f1": "F1",
    "mia_accuracy": "balanced",
    "likelihood_auc": "LR AUC",
    "likelihood_tpr_at_low_fpr": "LR TPR",
    "cost_ratio": "cost",
    "bytes_ratio": "bytes",
}
ATTACKED: Final = tuple(name for name in FIGURES if name.startswith(("mia_", "likelihood_")))
PLOTTED: Final = {
    "canary_success": "Canary: share of triggered test images answered with its class",
    "forgotten_accuracy": "Accuracy on the forgotten data",
    "test_accuracy": "Accuracy on the test data",
    "mia_auc": "Membership inference by the loss (AUC)",
    "likelihood_auc": "Membership inference by the likelihood ratio (AUC)",
    "cost_ratio": "Client-seconds relative to retraining",
}


def make_report(rows: Rows, command: str) -> Report:
    return Report(
        "How well each method forgets",
        command,
        sorted({int(one["seed"]) for one in rows}),
        [
            "Ten clients with Dirichlet shares; the leaver carried a backdoor canary. Methods ran with their defaults."
            " `retrain` is what the others are measured by: a method that forgets looks like it, and costs less."
            " `fine-tune` is no method: those who stay train on from the model as it was. A figure that `before` and"
            " `retrain` share cannot tell whether anything was forgotten.",
        ],
        [Section(_title(case), tables=[Table("Mean ± sd", *_table(found))]) for case, found in cases(rows)]
        + [Section("Plots", plots=[_bars(rows, name, label) for name, label in PLOTTED.items()])],
    )


def markdown(rows: Rows) -> str:
    """One table of everything."""
    lines = [f"| data | method | {' | '.join(FIGURES.values())} |", "|---|---" + "|---:" * len(FIGURES) + "|"]
    for case, found in cases(rows):
        lines += [f"| {_title(case)} | {' | '.join(cells)} |" for cells in _table(found)[1]]
    return "\n".join(lines)


def cases(rows: Rows) -> Iterator[tuple[tuple[str, float], Rows]]:
    """Rows of one data set and α, in the order in which they came."""
    for case in dict.fromkeys((str(one["dataset"]), float(one["alpha"])) for one in rows):
        yield case, [one for one in rows if (one["dataset"], one["alpha"]) == case]


def _title(case: tuple[str, float]) -> str:
    return f"{case[0]}, α = {case[1]:g}"


def _table(found: Rows) -> tuple[list[str], list[list[str]]]:
    """The model before the erasure comes first, attacked with shadows of the retrained one."""
    methods = dict.fromkeys(str(one["method"]) for one in found)
    before = [one for one in found if one["method"] == "retrain"]
    rows = [["before", *(spread((one.get(BEFORE + name) for one in before), 3) for name in FIGURES)]]
    rows += [
        [f"`{method}`", *(spread((one[name] for one in found if one["method"] == method), 3) for name in FIGURES)]
        for method in methods
    ]
    return ["method", *FIGURES.values()], rows


def _bars(rows: Rows, name: str, label: str) -> Bars:
    methods = list(dict.fromkeys(str(one["method"]) for one in rows))
    series = {}
    for case, found in cases(rows):
        known = [one for one in found if one[name] is not None]
        values = {m: [float(one[name]) for one in known if one["method"] == m] for m in methods}
        series[_title(case)] = [_mean_and_sd(values[method]) for method in methods]
    return Bars(label, name, methods, series)


def _mean_and_sd(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
