"""The stop rule of a run of clusters: when its best line is good and steady, every line stops, and they are merged.

A line that meets the rule asks, and waits for the answer. Lines that a method of an erasure is mending, or that still
owe the rounds of training that follow it, end when they have done that.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.engine import events as e
from coordinator.engine import families, programs
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, Cohort
from coordinator.engine.runs import end_work
from services.program.contract import Overruled
from services.training.rounds import accuracies_of, is_met, reached
from services.wire.v1.runs import StopRule


def stop_run(draft: Draft, message: m.StopRun) -> None:
    run, proposer = draft.state.runs[message.run_id], draft.state.cohorts[message.cohort_id]
    if message.job_id is not None and message.job_id in draft.state.jobs:
        draft.emit(e.JobSettled(message.job_id, "done"))
    if run.status in ENDED or proposer.awaiting is None or proposer.awaiting != message.job_id:
        return  # the line was fenced, or the run ended
    lines = [c for c in families.cohorts_of(draft.state, run.id) if c.kind in ("line", "root", "inner", "leaf")]
    best, accuracies = _best(lines, run.spec.stop)
    if not is_met(run.spec.stop, accuracies):
        programs.resume(draft, proposer.id, Overruled())
        return
    reason = message.reason if best.id == proposer.id else reached(accuracies[-1], best.round, best.name)
    for line in lines:
        if line.phase in families.TRAINING:
            _stop(draft, line, reason)
    draft.post(proposer, m.SettleRun(run.id))


def _best(lines: Iterable[Cohort], stop: StopRule) -> tuple[Cohort, list[float]]:
    """The line with the highest newest accuracy, whoever asked; of equal ones, one that meets the rule."""
    served = [c for c in lines if c.parent_id is None and c.phase != "retired" and c.unlearning is None]
    judged = [(c, found) for c in served if (found := accuracies_of(c.program_state))]
    return min(judged, key=lambda one: (-one[1][-1], not is_met(stop, one[1]), one[0].name))


def _stop(draft: Draft, line: Cohort, reason: str) -> None:
    if line.unlearning is not None:
        draft.emit(e.RoundsLimited(line.id, line.unlearning.then.until_round))
        return
    recovery = line.recovery
    owed = recovery.from_round + recovery.num_rounds if recovery is not None and recovery.num_rounds else 0
    draft.emit(e.RoundsLimited(line.id, max(line.round, owed)))
    if owed <= line.round:
        end_work(draft, line, spares="audit")
        draft.emit(e.CohortEnded(line.id, "finished", reason))
