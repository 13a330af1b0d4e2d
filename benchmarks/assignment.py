"""How long KNOT's exact assignment takes: `lethe bench assignment [--json]`.

Clients have Pareto-distributed times and Beta-distributed disparities; bounds are the defaults. Fixed seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.figures import Printer
from services.topology import knot

SIZES: Final = ((100, 5), (1000, 5), (10_000, 10), (100_000, 10))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lethe bench assignment", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line per row")
    arguments = parser.parse_args(argv)
    printer = Printer(as_json=arguments.json, benchmark="assignment")
    measure(10, 2)  # imports OR-Tools
    for num_clients, num_clusters in SIZES:
        printer.row({"clients": num_clients, "clusters": num_clusters, "seconds": measure(num_clients, num_clusters)})
    return 0


def measure(num_clients: int, num_clusters: int) -> float:
    """Seconds for one assignment, without the profile."""
    rng = np.random.default_rng(num_clients)
    times, disparities = 1.0 + rng.pareto(1.5, num_clients), rng.beta(2.0, 5.0, num_clients)
    levels, _ = knot.profile_levels(times.tolist(), disparities.tolist(), num_clusters)
    min_size, max_size = knot.default_bounds(num_clients, num_clusters)
    started = time.perf_counter()
    knot.assign(levels, min_size=min_size, max_size=max_size)
    return round(time.perf_counter() - started, 4)
