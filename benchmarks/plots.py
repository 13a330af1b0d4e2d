"""Plots of a report as values, and how matplotlib draws them: legend outside, colours that everybody can tell apart."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#888888")
"""Okabe and Ito's."""
DASHES: Final = ("-", "--", "-.", ":")
MARKS: Final = (":", "-.", "-")
"""How instants of one kind, a second and a third are marked."""
ONE_LINE: Final = 60
"""Characters that labels of a legend may have together to stand in one line."""


@dataclass(frozen=True)
class Line:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    """With `high`, a shaded band, such as the range over seeds."""
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Curves:
    """Lines over a common axis, with instants marked by vertical lines."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Mapping[str, float | Sequence[float]] | None = None
    level: tuple[str, float] | None = None
    """A horizontal line and what it means, such as the target."""
    until: float | None = None
    """Where the horizontal axis ends; lines may go on."""
    is_logarithmic: bool = False
    """The vertical axis."""


@dataclass(frozen=True)
class Bars:
    """Groups of bars: one colour per series, with one value (and its deviation) per group; None: no bar."""

    title: str
    y_label: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[tuple[float, float] | None]]
    x_label: str | None = None
    is_logarithmic: bool = False
    """The vertical axis."""


Plot = Curves | Bars


def bar(values: Iterable[float | None]) -> tuple[float, float] | None:
    """Mean and standard deviation of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0


def draw_svg(plot: Plot) -> str:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    # The salt makes equal plots equal bytes.
    with matplotlib.rc_context({"svg.hashsalt": plot.title, "font.size": 10}):
        figure = Figure(figsize=(8.6, 4.6), layout="constrained")
        axes = figure.add_subplot()
        match plot:
            case Curves():
                _draw_curves(axes, plot)
            case Bars():
                _draw_bars(axes, plot)
        if plot.is_logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
        axes.set_title(plot.title)
        axes.set_ylabel(plot.y_label)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        ncols = len(labels) if len("".join(labels)) <= ONE_LINE else 4
        figure.legend(handles, labels, loc="outside lower center", ncols=max(1, ncols), frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _draw_curves(axes: Axes, plot: Curves) -> None:
    for number, line in enumerate(plot.lines):
        colour = COLOURS[number % len(COLOURS)]
        style = DASHES[number // len(COLOURS) % len(DASHES)]
        axes.plot(line.x, line.y, color=colour, linestyle=style, linewidth=1.6, label=line.label)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    for style, (name, instants) in zip(cycle(MARKS), (plot.marks or {}).items(), strict=False):
        for number, instant in enumerate([instants] if isinstance(instants, int | float) else instants):
            axes.axvline(instant, color="#444444", linestyle=style, linewidth=1.4, label=None if number else name)
    if plot.level is not None:
        axes.axhline(plot.level[1], color="#444444", linestyle="--", linewidth=1, label=plot.level[0])
    axes.set_xlabel(plot.x_label)
    if plot.until is not None:
        axes.set_xlim(min(x for line in plot.lines for x in line.x), plot.until)


def _draw_bars(axes: Axes, plot: Bars) -> None:
    width = 0.8 / len(plot.series)
    for number, (name, values) in enumerate(plot.series.items()):
        shown = [(group, value) for group, value in enumerate(values) if value is not None]
        places = [group + (number - (len(plot.series) - 1) / 2) * width for group, _ in shown]
        bars = axes.bar(
            places,
            [mean for _, (mean, _) in shown],
            width * 0.92,
            yerr=[deviation for _, (_, deviation) in shown],
            color=COLOURS[number % len(COLOURS)],
            error_kw={"elinewidth": 1, "capsize": 2},
            label=name,
        )
        axes.bar_label(bars, fmt=_short, fontsize=7, padding=2)
    axes.set_xticks(range(len(plot.groups)), plot.groups)
    if plot.x_label is not None:
        axes.set_xlabel(plot.x_label)
    axes.margins(y=0.12)
    if not plot.is_logarithmic:
        axes.set_ylim(bottom=0)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
