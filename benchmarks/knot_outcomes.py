"""What one simulation of `lethe bench knot` came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.experiments import Cell
from benchmarks.knot_scenarios import DATASETS, Setup
from lethe.simulation.results import Results


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    erased_s: float
    to_target_s: float | None
    served: list[tuple[float, float, float]]
    """(virtual seconds, best and worst of the lines): accuracies or perplexities."""
    method: str
    """Of the erasure."""
    updates_redone: int
    client_s_redone: float
    client_s: float
    """Of the whole run, up to the target."""
    cohorts_cut: int


def outcome_of(cell: Cell, results: Results) -> Outcome:
    (erasure,) = results.erasures
    reached_s = _reached(DATASETS[cell.dataset], results, erasure.filed_s)
    return Outcome(
        cell,
        erasure.filed_s,
        None if reached_s is None else reached_s - erasure.filed_s,
        _served(DATASETS[cell.dataset], results),
        erasure.method,
        erasure.updates_redone,
        erasure.client_s_redone,
        results.summary.client_s,
        len(erasure.cohorts),
    )


def _reached(setup: Setup, results: Results, after_s: float) -> float | None:
    if setup.figure == "accuracy":
        return results.reached(setup.target, after_s=after_s)
    return results.fell_to(math.log(setup.target), after_s=after_s)


def _served(setup: Setup, results: Results) -> list[tuple[float, float, float]]:
    if setup.figure == "accuracy":
        found = [(row.virtual_s, row.best, row.worst) for row in results.served]
    else:
        losses = [(row.virtual_s, row.best_loss, row.worst_loss) for row in results.served]
        found = [(at, best and math.exp(best), worst and math.exp(worst)) for at, best, worst in losses]
    return [(at, best, worst) for at, best, worst in found if best is not None and worst is not None]


def row_of(outcome: Outcome) -> dict[str, Any]:
    cell, setup = outcome.cell, DATASETS[outcome.cell.dataset]
    before = [best for instant, best, _ in outcome.served if instant < outcome.erased_s]
    return {
        "dataset": cell.dataset,
        "variant": cell.variant,
        "method": cell.method,
        "seed": cell.seed,
        "virtual_s_to_target": _rounded(outcome.to_target_s),
        "target": setup.target,
        "erased_at_s": _rounded(outcome.erased_s),
        "profiling_s": _rounded(outcome.erased_s - setup.erased_at_s),
        f"{setup.figure}_before": before[-1] if before else None,
        "erased_by": outcome.method,
        "updates_redone": outcome.updates_redone,
        "client_s_redone": _rounded(outcome.client_s_redone),
        "client_s": _rounded(outcome.client_s),
        "lines_cut": outcome.cohorts_cut,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
