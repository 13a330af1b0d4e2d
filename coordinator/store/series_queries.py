"""A run as curves: figures of its models and of its rounds, thinned before they leave. Reads only."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.store import tables as t
from coordinator.store.topology_queries import named_after_the_erased
from services.core.errors import Rejected
from services.core.model_figures import accuracy_of, loss_of
from services.core.thinning import thinned
from services.wire.v1.views import RunSeries, Series, SeriesFence, SeriesPoint
from services.wire.v1.work import FIGURES_ONLY

Unit = Literal["fraction", "seconds", "bytes", "clients", "none"]
USUAL: Final = ("accuracy", "loss", "seconds", "clients")
OF_ROUNDS: Final[dict[str, Unit]] = {"seconds": "seconds", "clients": "clients", "bytes_received": "bytes"}
MOST_COHORTS: Final = 20
BY_CLASS: Final = "accuracy/"
ALL_CLASSES: Final = f"{BY_CLASS}*"

_OF_CLASS: Final = re.compile(r"validation_accuracy/[0-9]{1,6}")


class Measured(NamedTuple):
    """What becomes a `SeriesPoint` if it is not thinned out."""

    round: int
    at: datetime
    value: float
    epoch: int


Points = dict[tuple[str, UUID], list[Measured]]
"""Points by metric and cohort."""


async def series(
    connection: AsyncConnection, run_id: UUID, metrics: Sequence[str], cohort_ids: Sequence[UUID], most_points: int
) -> RunSeries:
    """The curves of these cohorts; without any, of the largest of each tree or cluster."""
    cohorts, num_left_off = await _cohorts(connection, run_id, cohort_ids)
    wanted = list(dict.fromkeys(metrics or USUAL))
    found: Points = defaultdict(list)
    if of_models := [name for name in wanted if name not in OF_ROUNDS]:
        await _of_models(connection, list(cohorts), of_models, found)
    if of_rounds := [name for name in wanted if name in OF_ROUNDS]:
        await _of_rounds(connection, list(cohorts), of_rounds, found)
    return RunSeries(
        run_id=run_id,
        metrics=[
            Series(
                name=name,
                cohort_id=cohort_id,
                cohort_name=cohort_name,
                unit=unit_of(name),
                total=len(points),
                points=[SeriesPoint(**one._asdict()) for one in thinned(points, most_points, lambda one: one.value)],
            )
            for name in _named(wanted, found)
            for cohort_id, cohort_name in cohorts.items()
            if (points := found.get((name, cohort_id)))
        ],
        fences=await _fences(connection, list(cohorts)),
        cohorts_left_off=num_left_off,
    )


def _named(wanted: Sequence[str], found: Points) -> list[str]:
    """`accuracy/*` stands for the accuracy of every class that was judged."""
    of_classes = {name for name, _ in found if _OF_CLASS.fullmatch(f"validation_{name}")}
    classes = sorted(of_classes, key=lambda name: int(name.removeprefix(BY_CLASS)))
    every = [each for name in wanted for each in (classes if name == ALL_CLASSES else [name])]
    return list(dict.fromkeys(every))


def unit_of(name: str) -> Unit:
    return OF_ROUNDS.get(name) or ("fraction" if "accuracy" in name else "none")


async def _cohorts(
    connection: AsyncConnection, run_id: UUID, cohort_ids: Sequence[UUID]
) -> tuple[dict[UUID, str | None], int]:
    """Their names, and how many are left off."""
    c = t.cohorts.c
    of_run = sa.select(c.id, c.name).where(c.run_id == run_id)
    usual = of_run.where(c.parent_id.is_(None), c.kind != "profile", c.phase != "retired")
    statement = of_run.where(c.id.in_(cohort_ids)) if cohort_ids else usual
    rows = (await connection.execute(statement.order_by(c.id).limit(MOST_COHORTS))).all()
    if missing := set(cohort_ids) - {row.id for row in rows}:
        raise Rejected("not-found", f"run {run_id} has no cohort {min(missing)}")
    num = (await connection.execute(sa.select(sa.func.count()).select_from(usual.subquery()))).scalar_one()
    hidden = await named_after_the_erased(connection, run_id)
    names = {row.id: None if row.id in hidden else row.name for row in rows}
    return names, 0 if cohort_ids else num - len(rows)


async def _of_models(
    connection: AsyncConnection, cohort_ids: Sequence[UUID], names: Iterable[str], found: Points
) -> None:
    c = t.checkpoints.c
    statement = sa.select(c.cohort_id, c.round, c.epoch, c.created_at, c.metrics).where(c.cohort_id.in_(cohort_ids))
    for row in await connection.execute(statement.order_by(c.created_at, c.id)):
        for name in _expanded(names, row.metrics):
            value = _figure(row.metrics, name)
            if value is not None and math.isfinite(value):
                point = Measured(round=row.round, at=row.created_at, value=value, epoch=row.epoch)
                found[name, row.cohort_id].append(point)


def _expanded(names: Iterable[str], metrics: Mapping[str, float]) -> Iterator[str]:
    for name in names:
        if name == ALL_CLASSES:
            yield from (key.partition("_")[2] for key in metrics if _OF_CLASS.fullmatch(key))
        else:
            yield name


def _figure(metrics: Mapping[str, float], name: str) -> float | None:
    """`accuracy` and `loss` as they are judged; any other figure by its name, with or without who judged it."""
    match name:
        case "accuracy":
            return accuracy_of(metrics)
        case "loss":
            return loss_of(metrics)
    return next((metrics[key] for key in (name, f"validation_{name}", f"clients_{name}") if key in metrics), None)


async def _of_rounds(
    connection: AsyncConnection, cohort_ids: Sequence[UUID], names: Sequence[str], found: Points
) -> None:
    r, u = t.rounds.c, t.updates.c
    statement = sa.select(r.id, r.cohort_id, r.number, r.epoch, r.opened_at, r.closed_at, r.num_received).where(
        r.cohort_id.in_(cohort_ids), r.status == "closed", r.kind.not_in(FIGURES_ONLY)
    )
    num_bytes: dict[UUID, int] = {}
    if "bytes_received" in names:
        by_round = sa.select(u.round_id, sa.func.sum(u.num_bytes).label("num_bytes"))
        weighed = by_round.where(u.cohort_id.in_(cohort_ids), u.num_bytes.is_not(None)).group_by(u.round_id)
        num_bytes = {row.round_id: int(row.num_bytes) for row in await connection.execute(weighed)}
    for row in await connection.execute(statement.order_by(r.closed_at, r.id)):
        values = _values(row, num_bytes)
        for name in names:
            if (value := values[name]) is not None:
                point = Measured(round=row.number, at=row.closed_at, value=value, epoch=row.epoch)
                found[name, row.cohort_id].append(point)


def _values(row: Any, num_bytes: Mapping[UUID, int]) -> dict[str, float | None]:
    """What older releases took in was not weighed."""
    return {
        "seconds": max(0.0, (row.closed_at - row.opened_at).total_seconds()),
        "clients": float(row.num_received),
        "bytes_received": float(num_bytes[row.id]) if row.id in num_bytes else None,
    }


async def _fences(connection: AsyncConnection, cohort_ids: Sequence[UUID]) -> list[SeriesFence]:
    x = t.lines.c
    statement = (
        sa.select(x.erasure_id, x.cohort_id, x.round_at_fence, t.erasures.c.fenced_at)
        .join(t.erasures, t.erasures.c.id == x.erasure_id)
        .where(x.cohort_id.in_(cohort_ids))
        .order_by(t.erasures.c.fenced_at, x.erasure_id, x.cohort_id)
    )
    by_erasure: dict[UUID, list[Any]] = defaultdict(list)
    for row in await connection.execute(statement):
        by_erasure[row.erasure_id].append(row)
    return [
        SeriesFence(
            at=rows[0].fenced_at,
            round=max(row.round_at_fence for row in rows),
            erasure_id=erasure_id,
            cohort_ids=[row.cohort_id for row in rows],
        )
        for erasure_id, rows in by_erasure.items()
    ]
