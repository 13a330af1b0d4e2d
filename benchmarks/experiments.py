"""Simulated experiments: cells of (data set, method, seed), run side by side, and the options that they share."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lethe.simulation import Progress, Results, simulate
from lethe.simulation.scenario import parse
from services.data.data_folders import VARIABLE


def simulated(cell: Cell) -> Results:
    return simulate(parse(cell.scenario, cell.name), progress=cell.watch)


@dataclass(frozen=True)
class Cell:
    dataset: str
    method: str
    seed: int
    variant: str
    scenario: dict[str, Any]
    """As in a scenario file."""
    watch: Callable[[Progress], bool] | None = None
    """Told of every published model; True ends the simulation."""
    play: Callable[[Cell], Results] = simulated

    @property
    def name(self) -> str:
        return f"{self.dataset} {self.variant} {self.method} seed {self.seed}"


def options_of(
    name: str, description: str | None, datasets: Sequence[str], methods: Sequence[str]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lethe bench {name}", description=description)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--preset", choices=["small", "full"], default="small", help="small: minutes on two cores")
    parser.add_argument("--dataset", choices=datasets, action="append", help="only this one; may be repeated")
    parser.add_argument("--method", choices=methods, action="append", help="only this one; may be repeated")
    parser.add_argument("--variant", action="append", help="only this one of the preset; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on")
    parser.add_argument("--processes", type=int, default=2, help="simulations at a time")
    parser.add_argument("--data", type=Path, help=f"folder of the data files, before those of {VARIABLE}")
    parser.add_argument("--out", type=Path, default=Path(f"bench-{name}"), help="folder of the report")
    return parser


def command_of(name: str, options: argparse.Namespace) -> str:
    """The command that makes the same figures again."""
    keys = ("dataset", "method", "variant")
    chosen = [f"--{key} {shlex.quote(value)}" for key in keys for value in getattr(options, key) or ()]
    return " ".join([f"lethe bench {name} --preset {options.preset} --seeds {options.seeds}", *chosen])


def run_cells(cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[tuple[Cell, Results]]:
    """Each cell with its results, as they come in; what is going on is told on stderr."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.data is not None:
        os.environ[VARIABLE] = os.pathsep.join(filter(None, (str(options.data.resolve()), os.environ.get(VARIABLE))))
    for cell in cells:
        parse(cell.scenario, cell.name)  # a mistake shows before hours of work
    started = time.monotonic()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        waiting: dict[Future[Results], Cell] = {pool.submit(_run, cell): cell for cell in cells}
        for number, future in enumerate(as_completed(waiting), start=1):
            cell, results = waiting[future], future.result()
            elapsed_s = time.monotonic() - started
            progress = f"{number}/{len(cells)} {cell.name}: {results.wall_s:.0f} s, {elapsed_s:.0f} s since the start"
            print(progress, file=sys.stderr, flush=True)
            yield cell, results


def _run(cell: Cell) -> Results:
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return cell.play(cell)
