"""What each recovery gives back of a class that left with its client: `lethe bench recovery [--preset small] [--json]`.

Five clients, the first of which holds α of one class, train; the first is unlearned by PGA, which is checked to have
cost the class; then the others recover by each method, all from the same unlearned model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.figures import Printer
from benchmarks.recovery_federation import FORGOTTEN, SKEWED, SOURCES, Cell, Federation
from benchmarks.recovery_report import make_report, markdown
from services.data.data_folders import VARIABLE, folders_of
from services.data.dataset import DataUnusable

ALPHAS: Final = (0.80, 0.85, 0.90)
NEIGHBOURS: Final = (1, 3, 5, 10, 15, 25)
"""Of the density (Fig. 5), for the largest α."""


@dataclass(frozen=True)
class Preset:
    samples: int | None
    rounds: int
    encoder_epochs: int


PRESETS: Final = {"small": Preset(12_000, 60, 60), "full": Preset(None, 60, 200)}
SAME: Final = {"plain": "imba_ulrc RT", "imba_ulrc": "imba_ulrc RT+SMOTE+DENOISE"}
"""Ablations that are other methods by another name: they are not run twice."""
KEPT: Final = "rows.jsonl"
"""In the folder of the report: the cells that are done, which another start leaves out."""
Method = tuple[str, str, dict[str, Any]]
"""What it is called here, the recovery's name, its parameters."""


def methods(cell: Cell) -> list[Method]:
    imba = {"skewed_class": SKEWED, "encoder_epochs": cell.encoder_epochs}
    found: list[Method] = [
        ("plain", "plain", {}),
        ("imba_ulrc", "imba_ulrc", imba),
        ("imba_ulrc RT+SMOTE", "imba_ulrc", {**imba, "denoise": False}),
        ("fedrs", "fedrs", {}),
        ("moon", "moon", {}),
    ]
    if cell.samples is None or cell.dataset == "usps":
        found.append(("quickdrop", "quickdrop", {}))
    if cell.alpha == max(ALPHAS):
        others = [k for k in NEIGHBOURS if k != 5]
        found += [(f"imba_ulrc k={k}", "imba_ulrc", {**imba, "density_neighbours": k}) for k in others]
    return found


def play(cell: Cell, wanted: Sequence[str] | None) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    federation = Federation(cell)
    weights, base, own = federation.trained()
    unlearned = federation.unlearned(weights, base, own)
    rows = [_row(cell, "all", "trained", federation.judge(weights))]
    rows.append(_row(cell, "pga", "unlearned", federation.judge(unlearned)))
    if rows[-1]["skewed_accuracy"] > FORGOTTEN:
        raise AssertionError(f"{cell.name}: {rows[-1]['skewed_accuracy']:.2%} of class {SKEWED} is left after PGA")
    for name, method, params in methods(cell):
        if wanted is None or method in wanted:
            started = time.monotonic()
            *_, recovered = federation.recovered(unlearned, method, params)
            seconds = round(time.monotonic() - started, 1)
            rows.append({**_row(cell, name, "recovered", federation.judge(recovered)), "seconds": seconds})
    return [*rows, *({**row, "method": SAME[row["method"]], "seconds": 0} for row in rows if row["method"] in SAME)]


def _row(cell: Cell, method: str, phase: str, judged: dict[str, float]) -> dict[str, Any]:
    place = {"dataset": cell.dataset, "alpha": cell.alpha, "method": method, "seed": cell.seed, "phase": phase}
    return {**place, "samples": cell.samples, **{name: round(value, 4) for name, value in judged.items()}}


def cells(options: argparse.Namespace) -> list[Cell]:
    preset = PRESETS[options.preset]
    folders = (*([options.data.resolve()] if options.data else []), *folders_of(os.environ))
    return [
        Cell(dataset, alpha, seed, options.samples or preset.samples, preset.rounds, preset.encoder_epochs, folders)
        for seed in range(1, options.seeds + 1)
        for dataset in options.dataset or SOURCES
        for alpha in options.alpha or ALPHAS
    ]


def run(wanted: Sequence[Cell], options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(play, cell, options.method): cell for cell in wanted}
        for number, future in enumerate(as_completed(waiting), start=1):
            rows = future.result()
            told = f"{number}/{len(wanted)} {waiting[future].name}: {time.monotonic() - started:.0f} s since the start"
            print(told, file=sys.stderr, flush=True)
            yield rows


def kept(folder: Path | None) -> list[dict[str, Any]]:
    if folder is None or not (folder / KEPT).exists():
        return []
    return [json.loads(line) for line in (folder / KEPT).read_text().splitlines()]


def keep(folder: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / KEPT).open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)


def is_done(cell: Cell, rows: Sequence[dict[str, Any]]) -> bool:
    names = ("dataset", "alpha", "seed", "samples")
    return any(all(row[name] == getattr(cell, name) for name in names) for row in rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench recovery", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON lines; the table then goes to standard error")
    parser.add_argument("--preset", choices=[*PRESETS], default="small")
    parser.add_argument("--dataset", choices=[*SOURCES], action="append", help="only this one; may be repeated")
    parser.add_argument("--method", action="append", help="only this recovery; may be repeated")
    parser.add_argument("--alpha", type=float, action="append", help="the leaver's share of the class; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on")
    parser.add_argument("--samples", type=int, help="of the training data; the preset's when absent")
    parser.add_argument("--processes", type=int, default=2, help="cells at a time")
    parser.add_argument("--data", type=Path, help=f"folder of the data files, before those of {VARIABLE}")
    parser.add_argument("--out", type=Path, help=f"folder of report.html and report.md with plots, and of {KEPT}")
    options = parser.parse_args(argv)
    printer = Printer(as_json=options.json, benchmark="recovery")
    rows = kept(options.out)
    for row in rows:
        printer.row(row)
    try:
        for found in run([cell for cell in cells(options) if not is_done(cell, rows)], options):
            rows += found
            for row in found:
                printer.row(row)
            keep(options.out, found)
    except DataUnusable as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\n{markdown(rows)}", file=sys.stderr if options.json else sys.stdout)
    if options.out is not None:
        print(report.write(make_report(rows, _command(options)), options.out), file=sys.stderr)
    return 0


def _command(options: argparse.Namespace) -> str:
    """As typed, without folders."""
    words = ["lethe bench recovery", f"--preset {options.preset}", f"--seeds {options.seeds}"]
    for name in ("dataset", "method", "alpha", "samples"):
        given = getattr(options, name)
        words += [f"--{name} {value}" for value in (given if isinstance(given, list) else [given]) if value is not None]
    return " ".join(words)


if __name__ == "__main__":
    raise SystemExit(main())
