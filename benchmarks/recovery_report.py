"""The figures of `lethe bench recovery`, mean ± sd over the seeds, beside the paper's (Yu et al., 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any, Final

from benchmarks.plots import Bars, Curves, Line, bar
from benchmarks.report import Report, Section, Table, spread

Rows = Sequence[Mapping[str, Any]]
PAPER: Final[Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]] = {
    "mnist": {
        "pga": [(0.0, 73.42), (0.1, 76.75), (0.1, 79.81)],
        "plain": [(88.85, 95.52), (86.38, 95.47), (81.61, 94.72)],
        "imba_ulrc": [(93.38, 95.82), (93.06, 95.94), (92.41, 95.91)],
        "imba_ulrc RT+SMOTE": [(92.80, 95.66), (92.41, 95.86), (91.54, 95.86)],
        "fedrs": [(91.28, 93.14), (88.35, 93.09), (87.93, 94.61)],
        "moon": [(88.78, 95.62), (87.39, 95.69), (81.61, 95.09)],
        "quickdrop": [(87.09, 91.12), (86.80, 91.34), (86.71, 91.33)],
    },
    "fashion-mnist": {
        "pga": [(0.0, 50.57), (0.0, 54.41), (0.0, 44.18)],
        "plain": [(80.18, 85.29), (74.42, 84.90), (71.23, 84.60)],
        "imba_ulrc": [(89.30, 85.75), (89.77, 86.12), (89.07, 86.06)],
        "imba_ulrc RT+SMOTE": [(91.80, 86.04), (87.20, 85.94), (88.50, 85.85)],
        "fedrs": [(87.70, 85.58), (87.43, 85.86), (80.87, 85.46)],
        "moon": [(77.60, 84.93), (76.67, 85.23), (65.77, 84.12)],
        "quickdrop": [(80.53, 80.02), (80.57, 79.98), (77.70, 79.62)],
    },
    "usps": {
        "pga": [(0.0, 11.31), (0.0, 17.84), (0.0, 13.40)],
        "plain": [(73.73, 84.99), (66.45, 84.14), (58.17, 81.03)],
        "imba_ulrc": [(87.53, 85.37), (87.11, 85.56), (85.26, 83.28)],
        "imba_ulrc RT+SMOTE": [(86.39, 85.33), (83.67, 84.65), (85.03, 82.37)],
        "fedrs": [(85.57, 85.50), (78.22, 84.60), (70.18, 83.38)],
        "moon": [(74.83, 85.01), (66.12, 84.03), (53.66, 82.82)],
        "quickdrop": [(82.84, 63.15), (81.23, 64.85), (80.86, 61.38)],
    },
}
"""Skewed class and balanced accuracy in percent, for α = 0.80, 0.85, 0.90."""
PAPER_ALPHAS: Final = (0.80, 0.85, 0.90)
FIGURES: Final = {"skewed_accuracy": "skewed class", "balanced_accuracy": "balanced"}
SWEEP: Final = "imba_ulrc k="
MARGINS: Final = {"mnist": 8, "fashion-mnist": 12, "usps": 20}
"""Points by which Imba-ULRc is to be above plain recovery on the skewed class, at the largest α."""
STEADY: Final = {"mnist": 3, "fashion-mnist": 3, "usps": 5}
"""Points by which its accuracy on the skewed class may change over α."""
NO_WORSE: Final = -0.5
"""Points of balanced accuracy, against plain recovery."""


def make_report(rows: Rows, command: str) -> Report:
    return Report(
        "What recoveries give back of a class that left with its client",
        command,
        sorted({int(one["seed"]) for one in rows}),
        [
            "Five clients, the first of which holds α of class 7 and is unlearned by PGA; the other four recover in ten"
            " rounds of two local epochs (SGD 0.01, momentum 0.5, batch 64), all from the same unlearned model, which"
            " is about as good as the paper's. MNIST and Fashion-MNIST: one hidden layer of 128 and dropout; USPS:"
            " two convolutions and dropout. Accuracies in percent on the test set; `balanced`: mean over the classes.",
            f"Training samples at most: {', '.join(_sizes(rows))}; a tenth of them is held out.",
        ],
        [
            Section("Goals", tables=[Table("Imba-ULRc against plain recovery, points", *_goals(rows))]),
            *(
                Section(name, tables=[Table("Mean ± sd; the paper's in brackets", *_table(rows, name))])
                for name in _names(rows)
            ),
            Section("Plots", plots=[*(_bars(rows, name) for name in _names(rows)), *_sweep(rows)]),
        ],
    )


def markdown(rows: Rows) -> str:
    columns, cells = _goals(rows)
    lines = [f"| {' | '.join(columns)} |", f"|---{'|---:' * (len(columns) - 1)}|"]
    lines += [f"| {' | '.join(row)} |" for row in cells] + [""]
    for name in _names(rows):
        columns, cells = _table(rows, name)
        lines += [f"**{name}**", "", f"| {' | '.join(columns)} |", f"|---{'|---:' * (len(columns) - 1)}|"]
        lines += [f"| {' | '.join(row)} |" for row in cells] + [""]
    return "\n".join(lines)


def _names(rows: Rows) -> list[str]:
    return [name for name in PAPER if any(one["dataset"] == name for one in rows)]


def _alphas(rows: Rows) -> list[float]:
    return sorted({float(one["alpha"]) for one in rows})


def _sizes(rows: Rows) -> list[str]:
    return sorted({"all" if one["samples"] is None else str(one["samples"]) for one in rows})


def _goals(rows: Rows) -> tuple[list[str], list[list[str]]]:
    columns = ["", "above plain at the largest α", "change over α", "plain over α", "balanced, against plain"]
    cells = []
    for dataset in _names(rows):
        alphas = _alphas([one for one in rows if one["dataset"] == dataset])
        ours, plain = (
            [{figure: _mean(rows, dataset, method, alpha, figure) for figure in FIGURES} for alpha in alphas]
            for method in ("imba_ulrc", "plain")
        )
        over, under = ([one["skewed_accuracy"] for one in found] for found in (ours, plain))
        balanced = min(a["balanced_accuracy"] - b["balanced_accuracy"] for a, b in zip(ours, plain, strict=True))
        cells.append(
            [
                dataset,
                f"{over[-1] - under[-1]:+.1f} (goal ≥ {MARGINS[dataset]})",
                f"{max(over) - min(over):.1f} (goal ≤ {STEADY[dataset]})",
                " → ".join(f"{one:.1f}" for one in under),
                f"{balanced:+.1f} (goal ≥ {NO_WORSE})",
            ]
        )
    return columns, cells


def _mean(rows: Rows, dataset: str, method: str, alpha: float, figure: str) -> float:
    place = {"dataset": dataset, "method": method, "alpha": alpha}
    found = [100 * float(one[figure]) for one in rows if all(one[name] == place[name] for name in place)]
    return fmean(found) if found else nan


def _table(rows: Rows, dataset: str) -> tuple[list[str], list[list[str]]]:
    own = [one for one in rows if one["dataset"] == dataset]
    alphas = _alphas(own)
    names = sorted({str(one["method"]) for one in own}, key=[str(one["method"]) for one in own].index)
    columns = ["method", *(f"α {alpha:g}: {label}" for alpha in alphas for label in FIGURES.values())]
    cells = []
    for method in names:
        line = [f"`{method}`"]
        for alpha in alphas:
            found = [one for one in own if one["method"] == method and one["alpha"] == alpha]
            for place, figure in enumerate(FIGURES):
                theirs = _paper(dataset, method, alpha)
                beside = "" if theirs is None or not found else f" ({theirs[place]:.1f})"
                line.append(spread((100 * float(one[figure]) for one in found), 1) + beside)
        cells.append(line)
    return columns, cells


def _paper(dataset: str, method: str, alpha: float) -> tuple[float, float] | None:
    found = PAPER.get(dataset, {}).get(method)
    return found[PAPER_ALPHAS.index(alpha)] if found is not None and alpha in PAPER_ALPHAS else None


def _bars(rows: Rows, dataset: str) -> Bars:
    own = [one for one in rows if one["dataset"] == dataset and one["phase"] == "recovered"]
    alphas = _alphas(own)
    names = [name for name in dict.fromkeys(str(one["method"]) for one in own) if not name.startswith(SWEEP)]
    series = {
        name: [
            bar(100 * float(one["skewed_accuracy"]) for one in own if one["method"] == name and one["alpha"] == alpha)
            for alpha in alphas
        ]
        for name in names
    }
    return Bars(f"{dataset}: accuracy on the skewed class", "%", [f"α = {alpha:g}" for alpha in alphas], series)


def _sweep(rows: Rows) -> list[Curves]:
    """Fig. 5: accuracy on the skewed class over the number of neighbours that the density counts."""
    lines = []
    for dataset in _names(rows):
        own = [one for one in rows if one["dataset"] == dataset and one["alpha"] == max(_alphas(rows))]
        means: dict[int, tuple[float, float]] = {}
        for one in own:
            name = str(one["method"])
            k = 5 if name == "imba_ulrc" else int(name.removeprefix(SWEEP)) if name.startswith(SWEEP) else None
            if k is not None and k not in means:
                found = bar(100 * float(other["skewed_accuracy"]) for other in own if other["method"] == name)
                means[k] = found or (0.0, 0.0)
        if len(means) > 1:
            ks = sorted(means)
            low, high = ([means[k][0] + sign * means[k][1] for k in ks] for sign in (-1, 1))
            lines.append(Line(dataset, ks, [means[k][0] for k in ks], low, high))
    if not lines:
        return []
    return [Curves("Density neighbours (Fig. 5)", "k", "accuracy on the skewed class, %", lines)]
