"""A report of tables and plots, written as one self-contained HTML file and as Markdown with the plots beside it.

Plots need matplotlib (Lethe's extra `report`); without it a report says so and has its tables only.
"""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import environment
from benchmarks.plots import Plot, draw_svg

NO_PLOTS: Final = "Plots are left out: they need matplotlib (`pip install '.[report]'` in a clone)."
STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1.5rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; } td { white-space: nowrap; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
code { background: #f3f3f3; padding: 0 .25em; border-radius: 3px; }
"""


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """Paragraphs, then tables, then plots. Texts may have `code` in backticks."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Report:
    title: str
    command: str
    seeds: Sequence[int]
    paragraphs: Sequence[str]
    sections: Sequence[Section]
    facts: dict[str, Any] = field(default_factory=environment)


def write(report: Report, folder: Path) -> Path:
    """report.html and report.md (with plot-1.svg, plot-2.svg, …) in the folder; returns the path of report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("plot-*.svg"):
        old.unlink()
    can_draw = find_spec("matplotlib") is not None
    page, text = _Html(), _Markdown(folder)
    for form in (page, text):
        form.heading(1, report.title)
        for paragraph in (*report.paragraphs, *_circumstances(report), *(() if can_draw else (NO_PLOTS,))):
            form.paragraph(paragraph)
        for section in report.sections:
            form.heading(2, section.title)
            for paragraph in section.paragraphs:
                form.paragraph(paragraph)
            for table in section.tables:
                form.table(table)
            for plot in section.plots if can_draw else ():
                form.plot(plot)
    (folder / "report.md").write_text("\n\n".join(text.parts) + "\n", "utf-8")
    body = "\n".join(page.parts)
    whole = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(report.title)}</title>'
        f"<style>{STYLE}</style>\n<body>\n{body}\n</body></html>\n"
    )
    (folder / "report.html").write_text(whole, "utf-8")
    return folder / "report.html"


def spread(values: Iterable[float | None], digits: int = 1) -> str:
    """Mean ± standard deviation; how many of how many, where some are missing; a dash where all are."""
    found = list(values)
    known = [value for value in found if value is not None]
    if not known:
        return "–"
    text = f"{statistics.fmean(known):.{digits}f}"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.{digits}f}"
    return text if len(known) == len(found) else f"{text} ({len(known)} of {len(found)})"


def _circumstances(report: Report) -> list[str]:
    facts = report.facts
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return [
        f"Made with `{report.command}`; seeds {', '.join(map(str, report.seeds))}.",
        f"Machine: {facts['cores']} cores, {facts['memory_gb']} GB of memory. Python {facts['python']}, {versions}.",
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class _Markdown:
    def __init__(self, folder: Path) -> None:
        self.parts: list[str] = []
        self._folder = folder
        self._num_plots = 0

    def heading(self, level: int, text: str) -> None:
        self.parts.append(f"{'#' * level} {text}")

    def paragraph(self, text: str) -> None:
        self.parts.append(text)

    def table(self, table: Table) -> None:
        rows = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)], *table.rows]
        self.parts.append(f"**{table.title}**")
        self.parts.append("\n".join(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows))

    def plot(self, plot: Plot) -> None:
        self._num_plots += 1
        name = f"plot-{self._num_plots}.svg"
        (self._folder / name).write_text(draw_svg(plot), "utf-8")
        self.parts.append(f"![{plot.title}]({name})")


class _Html:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def heading(self, level: int, text: str) -> None:
        self.parts.append(f"<h{level}>{_inline(text)}</h{level}>")

    def paragraph(self, text: str) -> None:
        self.parts.append(f"<p>{_inline(text)}</p>")

    def table(self, table: Table) -> None:
        head = "".join(f"<th>{_inline(name)}</th>" for name in table.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{_inline(_cell(value))}</td>' for value in row)}</tr>\n" for row in table.rows
        )
        self.parts.append(
            f"<table><caption>{_inline(table.title)}</caption>\n<thead><tr>{head}</tr></thead>"
            f"<tbody>\n{rows}</tbody></table>"
        )

    def plot(self, plot: Plot) -> None:
        svg = draw_svg(plot)
        self.parts.append(f"<figure>{svg[svg.index('<svg') :]}</figure>")


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
