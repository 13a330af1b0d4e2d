"""What an erasure would do and cost, method by method, without doing it.

The request is decided on a slice of the database that is thrown away, so that a preview is refused for the same
reasons as the request itself; the cuts come from the same plan that the fence carries out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from uuid import UUID

from coordinator.engine import surgery
from coordinator.engine.decide import decide
from coordinator.engine.entities import GIVEN_UP, Cohort, Run, State
from coordinator.engine.erasures import RECOVERY_ROUNDS
from coordinator.engine.messages import Envelope, FileErasure
from coordinator.store import history
from coordinator.store.database import Database
from coordinator.store.slices import load
from services.unlearning.methods import METHODS, Method
from services.wire.v1.erasure import ErasureOption, ErasurePreview, PreviewedCohort


async def preview(database: Database, request: FileErasure) -> ErasurePreview:
    async with database.read() as connection:  # its locks go with it: nothing on it is kept
        now = await database.now(connection)
        state = await load(connection, [request], State())
        decide(state, Envelope(request, now, os.urandom(16)))
        leavers = frozenset(client.id for client in state.clients.values() if client.name in request.subjects)
        lines = {c.id for c in state.cohorts.values() if c.kind not in ("merge", "profile") and c.phase != "retired"}
        traffic = await history.traffic(connection, lines, leavers)
    seen = _Seen(state, leavers, traffic, seconds_per_round(state), request.recovery_rounds)
    options = [_option(name, method, request, seen) for name, method in sorted(METHODS.items())]
    return ErasurePreview(subjects=sorted(request.subjects), options=options, chosen=_chosen(request, options))


@dataclass(frozen=True, slots=True)
class _Seen:
    state: State
    leavers: frozenset[UUID]
    traffic: dict[UUID, history.Traffic]
    seconds: dict[UUID, float]
    recovery_rounds: int | None


def seconds_per_round(state: State) -> dict[UUID, float]:
    """The median time between two checkpoints of the same epoch, by cohort: pauses count little."""
    instants: dict[tuple[UUID, int], list[datetime]] = defaultdict(list)
    for checkpoint in state.checkpoints.values():
        instants[checkpoint.cohort_id, checkpoint.epoch].append(checkpoint.created_at)
    gaps: dict[UUID, list[float]] = defaultdict(list)
    for (cohort_id, _), moments in instants.items():
        gaps[cohort_id] += [(later - earlier).total_seconds() for earlier, later in pairwise(sorted(moments))]
    return {cohort_id: median(found) for cohort_id, found in gaps.items() if found}


def _chosen(request: FileErasure, options: list[ErasureOption]) -> str:
    """`auto` restarts from surviving sub-cohorts where there are any, and rolls back everywhere else."""
    if request.method != "auto":
        return request.method
    reinit = next(option for option in options if option.method == "reinit")
    return "reinit" if reinit.applies else "retrain"


def _option(name: str, method: Method, request: FileErasure, seen: _Seen) -> ErasureOption:
    cuts = [
        (run, cut)
        for run in sorted(seen.state.runs.values(), key=lambda run: (run.name, run.id))
        for cut in surgery.plan(seen.state, run.id, seen.leavers, reinitialise=method.needs_sub_cohorts).cuts
    ]
    cohorts = [_previewed(run, cut, seen) for run, cut in cuts]
    seconds = [_seconds(cut.cohort, shown.rounds_to_redo, seen) for (_, cut), shown in zip(cuts, cohorts, strict=True)]
    known_seconds = [one for one in seconds if one is not None]
    touched = {cut.cohort.id for _, cut in cuts}
    lines = {c.id for c in seen.state.cohorts.values() if c.kind not in ("merge", "profile") and c.phase != "retired"}
    why_not = _why_not(method, request, [cut for _, cut in cuts])
    return ErasureOption(
        method=name,
        guarantee=method.guarantee,
        applies=why_not is None,
        why_not=why_not,
        cohorts=cohorts,
        num_cohorts_untouched=len(lines - touched),
        rounds_to_redo=sum(one.rounds_to_redo for one in cohorts),
        client_updates_to_redo=sum(one.client_updates_to_redo for one in cohorts),
        bytes_to_move=sum(
            _bytes(cut.cohort, shown.client_updates_to_redo, seen)
            for (_, cut), shown in zip(cuts, cohorts, strict=True)
        ),
        estimated_seconds=max(known_seconds, default=0.0) if len(known_seconds) == len(seconds) else None,
        initial_accuracy=_initial_accuracy([cut for _, cut in cuts]),
    )


def _why_not(method: Method, request: FileErasure, cuts: list[surgery.CohortCut]) -> str | None:
    if request.guarantee == "exact" and method.guarantee != "exact":
        return "it is approximate, and the request asks for exact"
    if method.needs_sub_cohorts and not any(cut.action == "re-initialised" for cut in cuts):
        return "no cohort with the client has a trained sub-cohort without it to restart from"
    return None


def _previewed(run: Run, cut: surgery.CohortCut, seen: _Seen) -> PreviewedCohort:
    rounds = _rounds_to_redo(run, cut, seen.recovery_rounds)
    return PreviewedCohort(
        run_id=run.id,
        run=run.name,
        cohort=cut.cohort.name,
        action=cut.action,
        rounds_to_redo=rounds,
        client_updates_to_redo=round(rounds * _updates_per_round(cut.cohort, seen)),
    )


def _rounds_to_redo(run: Run, cut: surgery.CohortCut, recovery_rounds: int | None) -> int:
    """Nothing is trained again in runs that were cancelled or failed."""
    if run.status in GIVEN_UP:
        return 0
    match cut.action:
        case "rolled-back":
            return cut.cohort.round - (cut.clean.round if cut.clean is not None else 0)
        case "re-initialised" if recovery_rounds is not None:
            return recovery_rounds
        case "re-initialised":
            return RECOVERY_ROUNDS if run.status == "completed" else 0
        case "retired":
            return 0


def _updates_per_round(cohort: Cohort, seen: _Seen) -> float:
    """As measured; before the first round, everybody who stays."""
    if cohort.id in seen.traffic:
        return seen.traffic[cohort.id].updates_per_round
    members = [m for m in seen.state.members.values() if m.cohort_id == cohort.id and m.active]
    return sum(member.client_id not in seen.leavers for member in members)


def _bytes(cohort: Cohort, num_updates: int, seen: _Seen) -> int:
    return round(num_updates * seen.traffic[cohort.id].bytes_per_update) if cohort.id in seen.traffic else 0


def _seconds(cohort: Cohort, rounds: int, seen: _Seen) -> float | None:
    if rounds == 0:
        return 0.0
    return rounds * seen.seconds[cohort.id] if cohort.id in seen.seconds else None


def _initial_accuracy(cuts: list[surgery.CohortCut]) -> float | None:
    found = []
    for cut in cuts:
        if cut.action != "retired":
            metrics = cut.clean.metrics if cut.clean is not None else {}
            found.append(metrics.get("validation_accuracy", metrics.get("clients_accuracy")))
    known = [accuracy for accuracy in found if accuracy is not None]
    return min(known) if known and len(known) == len(found) else None
