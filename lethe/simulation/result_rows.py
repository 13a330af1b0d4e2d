"""From the rows of a played scenario to its results."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from coordinator.engine.entities import Run
from coordinator.store import experiment_queries
from coordinator.store.experiment_queries import Forgotten, Published
from lethe.simulation.clock import virtual_s
from lethe.simulation.coordinator import SimulatedCoordinator
from lethe.simulation.results import ErasureRow, Results, RoundRow, ServedRow, SummaryRow
from services.core.model_figures import accuracy_of, loss_of
from services.methods.running import run_kernel
from services.tensors.streams import FileWriter
from services.training.rounds import EVALUATION_BATCH


class Figures(NamedTuple):
    accuracy: float
    loss: float | None


async def results_of(coordinator: SimulatedCoordinator, stopped: str | None) -> Results:
    """`stopped`: why the simulation ended before the run did."""
    async with coordinator.database.read() as connection:
        run, cohorts = await experiment_queries.run(connection), await experiment_queries.cohorts(connection)
        published = await experiment_queries.published(connection)
        forgotten = await experiment_queries.forgotten(connection)
        num_updates, client_s = await experiment_queries.all_work(connection)
    summary = SummaryRow(
        virtual_s=coordinator.clock.now_s,
        status="stopped" if stopped is not None else run.status if run is not None else "failed",
        reason=stopped or (run.reason if run is not None else None),
        client_updates=num_updates,
        client_s=client_s,
        digests={c.name: c.head_digest for c in cohorts if c.phase != "retired" and c.head_digest is not None},
    )
    published = [await _judged(coordinator, run, one) for one in published]
    rounds, erasures = [_round(one) for one in published], [_erasure(one) for one in forgotten]
    return Results(rounds, served(published, forgotten), erasures, summary)


async def _judged(coordinator: SimulatedCoordinator, run: Run | None, one: Published) -> Published:
    """Not every method has its models judged; those that are still stored are judged here."""
    data = run.spec.validation.data if run is not None else None
    is_wanted = one.kind == "forgotten" and accuracy_of(one.metrics) is None
    storage, federation_id = coordinator.storage, coordinator.federation_id
    if run is None or data is None or not is_wanted or not await storage.find(federation_id, [one.digest]):
        return one
    params = {
        "model": run.spec.model.model_dump(),
        "weights": one.digest,
        "data": data,
        "batch_size": EVALUATION_BATCH,
    }
    async with storage.local(federation_id, [one.digest, data]) as inputs:
        figures = run_kernel("evaluate_model", params, inputs, FileWriter(Path()))  # which stays unused
    return replace(one, metrics={f"validation_{name}": value for name, value in figures.items()})


def _round(one: Published) -> RoundRow:
    kind: Any = one.kind
    return RoundRow(
        virtual_s=virtual_s(one.at),
        cohort=one.cohort,
        epoch=one.epoch,
        round=one.round,
        kind=kind,
        accuracy=accuracy_of(one.metrics),
        loss=loss_of(one.metrics),
        participants=one.participants,
        client_s=one.seconds,
        digest=one.digest,
    )


def _erasure(one: Forgotten) -> ErasureRow:
    erasure = one.erasure
    return ErasureRow(
        subjects=one.subjects,
        method=erasure.chosen or erasure.method,
        status=erasure.status,
        reason=erasure.reason,
        filed_s=virtual_s(erasure.created_at),
        fenced_s=_seconds(erasure.fenced_at),
        first_clean_s=_seconds(erasure.first_clean_at),
        completed_s=_seconds(erasure.completed_at),
        cohorts=[line.cohort_name for line in one.lines],
        updates_redone=one.updates,
        client_s_redone=one.seconds,
    )


def _seconds(instant: datetime | None) -> float | None:
    return None if instant is None else virtual_s(instant)


def served(published: list[Published], forgotten: list[Forgotten]) -> list[ServedRow]:
    """Replays what each top-level line served: its published models in turn, and after a fence what was left."""
    tops = {one.cohort for one in published if one.is_top}
    changes: list[tuple[datetime, int, str, Figures | None, bool]] = []
    for request in forgotten:
        for line in request.lines:
            if line.cohort_name in tops and (at := request.erasure.fenced_at) is not None:
                left = _figures_then(published, line.cohort_name, line.rollback_digest)
                changes.append((at, line.epoch_after, line.cohort_name, left, line.action == "retired"))
    judged = [(one, _figures(one)) for one in published if one.is_top]
    changes += [(one.at, one.epoch, one.cohort, figures, False) for one, figures in judged if figures is not None]
    changes.sort(key=lambda change: change[:2])  # what an epoch published comes after the fence that began it
    lines: dict[str, Figures | None] = {}
    rows: list[ServedRow] = []
    for position, (at, _, name, figures, is_retired) in enumerate(changes):
        lines[name] = figures
        if is_retired:
            del lines[name]
        if position + 1 == len(changes) or changes[position + 1][0] != at:
            rows.append(_served(virtual_s(at), lines))
    return rows


def _served(at: float, lines: dict[str, Figures | None]) -> ServedRow:
    known = [figures for figures in lines.values() if figures is not None]
    if not known:
        return ServedRow(at, None, None, None, len(lines))
    accuracies = [figures.accuracy for figures in known]
    row = ServedRow(at, max(accuracies), fmean(accuracies), min(accuracies), len(lines))
    losses = [figures.loss for figures in known if figures.loss is not None]
    if not losses:
        return row
    return replace(row, best_loss=min(losses), mean_loss=fmean(losses), worst_loss=max(losses))


def _figures(one: Published) -> Figures | None:
    accuracy = accuracy_of(one.metrics)
    return None if accuracy is None else Figures(accuracy, loss_of(one.metrics))


def _figures_then(published: list[Published], cohort: str, digest: str | None) -> Figures | None:
    found = [_figures(one) for one in published if one.cohort == cohort and one.digest == digest]
    return found[0] if found else None
