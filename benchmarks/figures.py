"""How benchmarks print: JSON lines for machines, a table for people; first of all what was measured on what."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any, Final

PACKAGES: Final = ("lethe", "uvicorn", "fastapi", "sqlalchemy", "asyncpg", "numpy", "torch")
Row = Mapping[str, Any]


def environment() -> dict[str, Any]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_gb, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "versions": found,
    }


class Printer:
    """Prints each row when it is known; as a table the columns are those of the first row."""

    def __init__(self, *, as_json: bool, benchmark: str) -> None:
        self._as_json = as_json
        self._columns: list[str] | None = None
        facts = {"benchmark": benchmark, **environment()}
        if as_json:
            print(json.dumps({"environment": facts}), flush=True)
        else:
            versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
            print(
                f"{facts['cores']} cores, {facts['memory_gb']} GB, load {facts['load_1min']}; {versions}\n", flush=True
            )

    def new_table(self) -> None:
        """The next row has other columns."""
        self._columns = None
        if not self._as_json:
            print(flush=True)

    def row(self, row: Row) -> None:
        if self._as_json:
            print(json.dumps(row), flush=True)
            return
        if self._columns is None:
            self._columns = list(row)
            print("  ".join(name.rjust(_width(name)) for name in self._columns))
        print("  ".join(_text(row.get(name)).rjust(_width(name)) for name in self._columns), flush=True)


def median_gap(instants: Sequence[float], *, skip: int = 1) -> float:
    """The median time between neighbours, without the first `skip` gaps (the first round warms up)."""
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    return statistics.median(gaps[skip:] or gaps)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _width(name: str) -> int:
    return max(8, len(name))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)
