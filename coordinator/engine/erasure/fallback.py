"""When an approximate method gave up, or its audit failed: begin it again, or fall back on exact retraining."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.draft import Draft
from coordinator.engine.entities import SETTLED, Cohort, Erasure, Line
from coordinator.engine.runs import stop_cohort


def try_again(draft: Draft, erasure: Erasure) -> None:
    for line in sorted(draft.state.lines.values(), key=lambda one: str(one.key)):
        if line.erasure_id != erasure.id or line.action != "unlearned":
            continue
        cohort = draft.state.cohorts[line.cohort_id]
        if gave_up(cohort) and cohort.num_members > 0:
            unlearning = {name: value for name, value in (cohort.unlearning or {}).items() if name != "stopped"}
            fenced = e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0, unlearning=unlearning)
            _fence(draft, line, cohort, fenced)
        elif gave_up(cohort) or not passed(line):
            fall_back(draft, line)


def gave_up(cohort: Cohort) -> bool:
    return cohort.unlearning is not None and "stopped" in cohort.unlearning


def passed(line: Line) -> bool:
    """Whether no audit speaks against the line as it is now."""
    return line.action != "unlearned" or line.audit is None or bool(line.audit["passed"])


def fall_back(draft: Draft, line: Line) -> None:
    """Retrain the line from its newest model without the leavers, which was noted at the fence."""
    cohort, kept = draft.state.cohorts[line.cohort_id], line.fallback or {"id": None, "digest": None, "round": 0}
    head_id = UUID(kept["id"]) if kept["id"] is not None else None
    fenced = e.CohortFenced(cohort.id, cohort.epoch + 1, head_id, kept["digest"], kept["round"])
    retrained = replace(line, action="rolled-back", rollback_digest=kept["digest"], target_round=line.round_at_fence)
    _fence(draft, replace(retrained, clean_at=None, done_at=None), cohort, fenced)
    run = draft.state.runs[line.run_id]
    if run.status == "completed":
        draft.emit(e.RunReopened(run.id, "retraining without what was erased"))


def _fence(draft: Draft, line: Line, cohort: Cohort, fenced: e.CohortFenced) -> None:
    """What the method has published so far is not served any more."""
    stop_cohort(draft, cohort)
    own = [c for c in draft.state.checkpoints.values() if c.cohort_id == cohort.id and c.epoch == cohort.epoch]
    if made := tuple(sorted(c.id for c in own if c.superseded_by is None)):
        draft.emit(e.CheckpointsSuperseded(made, line.erasure_id))
    draft.emit(fenced)
    cut = replace(line, epoch_after=fenced.epoch)
    draft.emit(e.LineFenced(cut))
    plan_others_again(draft, cut)


def plan_others_again(draft: Draft, cut: Line) -> None:
    """Other open requests that wait for this cohort go on from where it was cut now, towards their own targets."""
    for line in [one for one in draft.state.lines.values() if one.cohort_id == cut.cohort_id]:
        erasure = draft.state.erasures.get(line.erasure_id)
        if line.erasure_id == cut.erasure_id or erasure is None or erasure.status in SETTLED:
            continue
        again = replace(
            cut,
            erasure_id=line.erasure_id,
            epoch_before=line.epoch_before,
            round_at_fence=line.round_at_fence,
            target_round=max(line.target_round, cut.target_round if cut.action == "re-initialised" else 0),
            head_before=line.head_before,
            clean_at=line.clean_at or cut.clean_at,
        )
        draft.emit(e.LineFenced(again))
        if erasure.status in ("verifying", "requires_action"):  # a purge may be under way
            draft.emit(e.ErasureMoved(erasure.id, "executing", "another erasure cut the same cohort"))
