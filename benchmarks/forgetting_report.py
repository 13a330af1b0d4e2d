"""The figures of `lethe bench forgetting` as a Markdown table (mean ± sd over the seeds) and as a plot."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Rows = Sequence[Mapping[str, Any]]
FIGURES: Final = {
    "forgotten_accuracy": "forgotten",
    "remaining_accuracy": "remaining",
    "test_accuracy": "test",
    "canary_success": "canary",
    "mia_auc": "MIA AUC",
    "cost_ratio": "cost",
    "bytes_ratio": "bytes",
}


def markdown(rows: Rows) -> str:
    lines = [f"| data | α | method | {' | '.join(FIGURES.values())} |", "|---" * (3 + len(FIGURES)) + "|"]
    for (dataset, alpha, method), found in groups(rows):
        cells = [_mean_and_sd([one[name] for one in found]) for name in FIGURES]
        lines.append(f"| {dataset} | {alpha} | `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def groups(rows: Rows) -> Iterator[tuple[tuple[str, float, str], Rows]]:
    """Rows that differ in their seed only, in the order in which they came."""
    keys = dict.fromkeys((str(one["dataset"]), float(one["alpha"]), str(one["method"])) for one in rows)
    for key in keys:
        yield key, [one for one in rows if (one["dataset"], one["alpha"], one["method"]) == key]


def _mean_and_sd(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def plot(rows: Rows, path: Path) -> None:
    """Bars of every figure, a row of panels for each data set and α."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: install matplotlib (pip install 'lethe[report]')", file=sys.stderr)
        return
    found = dict(groups(rows))
    cases = list(dict.fromkeys(key[:2] for key in found))
    figure = Figure(figsize=(3 * len(FIGURES), 2.6 * len(cases)), layout="constrained")
    panels = figure.subplots(len(cases), len(FIGURES), squeeze=False, sharex=True)
    for line, case in zip(panels, cases, strict=True):
        methods = [key[2] for key in found if key[:2] == case]
        for panel, (name, label) in zip(line, FIGURES.items(), strict=True):
            values = [[one[name] for one in found[(*case, method)]] for method in methods]
            means = [statistics.fmean(each) for each in values]
            spreads = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values]
            panel.bar(methods, means, yerr=spreads, capsize=3)
            panel.axhline(means[0], color="grey", linewidth=0.8, linestyle="--")
            panel.tick_params(axis="x", rotation=60)
            panel.set_title(f"{case[0]}, α = {case[1]:g}: {label}", fontsize=9)
    figure.savefig(path)
