"""`lethe simulate`: play a scenario under a virtual clock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.failures import CommandFailed, require
from lethe.target import examples

if TYPE_CHECKING:
    from lethe.simulation import Progress, Results

HELP = examples(
    "lethe simulate scenario.yaml",
    "lethe simulate scenario.yaml --seed 7 --out results/seed-7 --json",
)


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A YAML file; see docs/simulation.md.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where models and results go, and a killed simulation goes on; else NAME.out."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data files are looked for first; then in the folders of LETHE_DATA.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the scenario's.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, max=64, help="How many train at a time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All rows of the results as JSON lines.")] = False,
) -> None:
    """Train and forget with many clients in this process: the real coordinator, the real training, invented time.

    The same scenario gives the same models, bit for bit, however often it is stopped and started again.
    """
    require("compute,worker", "sqlalchemy", "torch")
    import os

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from lethe.simulation import simulate as play
    from lethe.simulation.scenario import read
    from services.data.data_folders import folders_of

    given: dict[str, Any] = {"seed": seed, "processes": processes}
    wanted = read(scenario, {key: value for key, value in given.items() if value is not None})
    folders = folders_of(os.environ)
    directory = out if out is not None else Path(f"{scenario.stem}.out")
    with _Display() as display:
        results = play(wanted, directory, display.show, folders=folders if data_dir is None else (data_dir, *folders))
    _print(results, directory, as_json=as_json)
    if results.summary.status not in ("completed", "stopped"):
        raise CommandFailed(f"the run is {results.summary.status}: {results.summary.reason}")


class _Display:
    """Round, virtual clock, accuracy and the time left, on standard error: live on a terminal, else now and then."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        from lethe.printing import notes

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[figures]}"))
        self._bar = Progress(*columns, console=notes, transient=True)
        self._line = self._bar.add_task("starting", total=None, figures="")
        self._said_at = 0.0
        self._is_live = notes.is_terminal

    def __enter__(self) -> _Display:
        if self._is_live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._bar.stop()

    def show(self, now: Progress) -> None:
        from lethe.printing import say

        at = f"round {now.round}/{now.rounds_planned} of {now.cohort}"
        figures = _figures(now)
        if self._is_live:
            self._bar.update(self._line, description=at, total=now.rounds_planned, completed=now.round, figures=figures)
        elif now.wall_s - self._said_at >= self.EVERY_S:
            self._said_at = now.wall_s
            say(f"{at}, {figures}")


def _figures(now: Progress) -> str:
    accuracy = "" if now.served is None else f"accuracy {now.served:.4f}, "
    left_s = now.wall_s * (now.rounds_planned - now.round) / now.round if now.round else None
    left = "" if left_s is None else f", about {max(0.0, left_s):.0f} s to go"
    return f"{accuracy}virtual {now.virtual_s:.1f} s, {now.client_updates} updates in {now.wall_s:.0f} s{left}"


def _print(results: Results, directory: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    from lethe.printing import Column, print_record, print_records, say
    from lethe.simulation.results import line

    if as_json:
        for row in results.rows:
            sys.stdout.write(line(row) + "\n")
    else:
        final = {row.cohort: row for row in results.rounds}
        summary = asdict(results.summary)
        del summary["digests"]
        print_record(summary, as_json=False)
        columns = {name: name for name in ("cohort", "epoch", "round", "virtual_s", "accuracy", "digest")}
        newest = [asdict(final[name]) for name in sorted(results.summary.digests) if name in final]
        print_records(newest, columns, as_json=False)
        if results.erasures:
            shown = ("method", "status", "filed_s", "fenced_s", "first_clean_s", "completed_s", "updates_redone")
            headings: dict[str, Column] = {"forgotten": lambda row: ", ".join(row["subjects"])}
            headings |= {name: name for name in shown}
            print_records([asdict(erasure) for erasure in results.erasures], headings, as_json=False)
    say(f"{results.wall_s:.1f} s; every row is in {directory / 'results.jsonl'}")
