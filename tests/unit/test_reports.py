"""Reports of benchmarks: the same tables and plots as HTML and as Markdown."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plots import Bars, Curves, Line, draw_svg
from benchmarks.report import Report, Section, Table, spread, write


def test_a_report_has_its_tables_and_plots_in_both_forms(tmp_path: Path) -> None:
    curves = Curves("Accuracy", "round", "accuracy (%)", [Line("mmt", [1, 2], [50.0, 60.0])], {"erasure": 1.5})
    bars = Bars("Rounds", "rounds", ["mnist"], {"mmt": [(3.0, 1.0)], "bmt": [None]})
    section = Section("Figures", ["a < b"], [Table("Rounds", ["method", "ours"], [["mmt", 3.0]])], [curves, bars])
    page = write(Report("Title", "lethe bench exact", [1, 2], ["Made up."], [section]), tmp_path).read_text("utf-8")
    assert "a &lt; b" in page and page.count("<svg") == 2 and "<td>mmt</td><td>3</td>" in page
    assert "src=" not in page and 'href="http' not in page
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "| mmt | 3 |" in text and "![Rounds](plot-2.svg)" in text and "seeds 1, 2" in text
    assert (tmp_path / "plot-2.svg").read_text("utf-8").startswith("<?xml")


def test_equal_plots_are_equal_bytes() -> None:
    curves = Curves("Accuracy", "round", "accuracy (%)", [Line("mmt", [1, 2], [50.0, 60.0], [40, 50], [60, 70])])
    assert draw_svg(curves) == draw_svg(curves)


def test_a_spread_says_how_many_values_are_missing() -> None:
    assert spread([2.0, 4.0]) == "3.0 ± 1.4"
    assert spread([2.0, None, 4.0]) == "3.0 ± 1.4 (2 of 3)"
    assert spread([None]) == "–"
