"""What an erasure would do and cost, method by method, without doing it.

The request is decided on a slice of the database that is thrown away, so that a preview is refused for the same
reasons as the request itself; the options are those that the fence chooses from.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from uuid import UUID

from coordinator.engine.decide import decide
from coordinator.engine.entities import Checkpoint, State
from coordinator.engine.erasure import planner
from coordinator.engine.erasure.planner import CutCost, Option
from coordinator.engine.messages import Envelope, FileErasure
from coordinator.store.database import Database
from coordinator.store.slices import load
from services.core.model_figures import accuracy_of
from services.methods.catalogue import PLAIN
from services.wire.v1.erasure import ErasureOption, ErasurePreview, PreviewedCohort


async def preview(database: Database, request: FileErasure) -> ErasurePreview:
    async with database.trial() as connection:
        now = await database.now(connection)
        state = await load(connection, [request])
    decided = decide(state, Envelope(request, now, os.urandom(16))).state.erasures[request.erasure_id]
    leavers = frozenset(client.id for client in state.clients.values() if client.name in request.subjects)
    options = planner.options(state, request, leavers)
    return ErasurePreview(
        subjects=sorted(request.subjects),
        options=[_shown(option, state) for option in options],
        chosen=planner.choose(options, request.method).name,
        recovery=request.recovery.method if request.recovery is not None else PLAIN,
        needs_approval=decided.needs_approval,
    )


def _shown(option: Option, state: State) -> ErasureOption:
    if option.why_not is not None:
        return _not_applicable(option)
    touched = {cost.cut.cohort.id for cost in option.costs}
    lines = {c.id for c in state.cohorts.values() if c.kind not in ("merge", "profile") and c.phase != "retired"}
    return ErasureOption(
        method=option.name,
        guarantee=option.method.guarantee,
        applies=True,
        why_not=None,
        cohorts=[_cohort(cost) for cost in option.costs],
        num_cohorts_untouched=len(lines - touched),
        rounds_to_redo=sum(cost.num_rounds for cost in option.costs),
        client_updates_to_redo=option.num_updates,
        client_work=option.work,
        profiles_to_make=sum(cost.num_profiles for cost in option.costs),
        bytes_to_move=option.num_bytes,
        estimated_seconds=_estimated_seconds(option, seconds_per_round(state)),
        initial_accuracy=_initial_accuracy(option.costs, state),
    )


def _not_applicable(option: Option) -> ErasureOption:
    """An option without figures: zero would read as free."""
    return ErasureOption(
        method=option.name,
        guarantee=option.method.guarantee,
        applies=False,
        why_not=option.why_not,
        cohorts=[],
        num_cohorts_untouched=None,
        rounds_to_redo=None,
        client_updates_to_redo=None,
        client_work=None,
        profiles_to_make=None,
        bytes_to_move=None,
        estimated_seconds=None,
        initial_accuracy=None,
    )


def _cohort(cost: CutCost) -> PreviewedCohort:
    return PreviewedCohort(
        run_id=cost.run.id,
        run=cost.run.name,
        cohort=cost.cut.cohort.name,
        action=cost.cut.action,
        rounds_to_redo=cost.num_rounds,
        client_updates_to_redo=cost.num_updates,
        recovery_rounds=cost.recovery_rounds,
    )


def seconds_per_round(state: State) -> dict[UUID, float]:
    """The median time between two checkpoints of the same epoch, by cohort: pauses count little."""
    instants: dict[tuple[UUID, int], list[datetime]] = defaultdict(list)
    for checkpoint in state.checkpoints.values():
        instants[checkpoint.cohort_id, checkpoint.epoch].append(checkpoint.created_at)
    gaps: dict[UUID, list[float]] = defaultdict(list)
    for (cohort_id, _), moments in instants.items():
        gaps[cohort_id] += [(later - earlier).total_seconds() for earlier, later in pairwise(sorted(moments))]
    return {cohort_id: median(found) for cohort_id, found in gaps.items() if found}


def _estimated_seconds(option: Option, per_round: dict[UUID, float]) -> float | None:
    """The time of the slowest cohort; None where one of them was never measured."""
    slow = [cost for cost in option.costs if cost.num_rounds]
    if any(cost.cut.cohort.id not in per_round for cost in slow):
        return None
    per_update = option.method.work_per_update
    taken = [(cost.num_rounds * per_update + cost.added_rounds) * per_round[cost.cut.cohort.id] for cost in slow]
    return max(taken, default=0.0)


def _initial_accuracy(costs: Sequence[CutCost], state: State) -> float | None:
    """The lowest among the models that cohorts go on from; a mean of several models is judged only once it is made."""
    found = [_accuracy(_starts_from(cost, state)) for cost in costs if cost.cut.action != "retired"]
    known = [accuracy for accuracy in found if accuracy is not None]
    return min(known) if known and len(known) == len(found) else None


def _starts_from(cost: CutCost, state: State) -> Checkpoint | None:
    if cost.cut.action == "re-initialised" and len(cost.cut.sources) == 1:
        head_id = state.cohorts[cost.cut.sources[0]].head_id
        return state.checkpoints.get(head_id) if head_id is not None else None
    return cost.cut.clean


def _accuracy(checkpoint: Checkpoint | None) -> float | None:
    return None if checkpoint is None else accuracy_of(checkpoint.metrics)
