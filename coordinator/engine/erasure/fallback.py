"""What follows when an approximate method gave up or its audit failed: the method again, or exact retraining."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine.draft import Draft
from coordinator.engine.entities import AffectedCohort, Cohort, Erasure, State
from coordinator.engine.erasure import cuts, cutting, planner
from coordinator.engine.erasure.recovery import extra_rounds, retraining
from coordinator.engine.erasure.stages import CleanModel
from coordinator.engine.runs import stop_cohort


def try_again(draft: Draft, erasure: Erasure) -> None:
    """A method that gave up begins again. A cohort whose audit failed, or that has nobody left, is retrained."""
    for affected in sorted(draft.state.affected_cohorts.values(), key=lambda one: str(one.key)):
        if affected.erasure_id != erasure.id or affected.action != "unlearned":
            continue
        cohort = draft.state.cohorts[affected.cohort_id]
        if cohort.unlearning is not None and gave_up(cohort) and cohort.num_members > 0:
            again = replace(cohort.unlearning, stopped=None)
            fenced = e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0, unlearning=again)
            _fence(draft, affected, cohort, fenced)
        elif gave_up(cohort) or not passed(affected):
            fall_back(draft, affected)


def gave_up(cohort: Cohort) -> bool:
    return cohort.unlearning is not None and cohort.unlearning.stopped is not None


def passed(affected: AffectedCohort) -> bool:
    """Whether no audit speaks against the cohort as it is now."""
    return affected.action != "unlearned" or affected.audit is None or affected.audit.passed


def fall_back(draft: Draft, affected: AffectedCohort) -> None:
    """Retrain the cohort from its newest model without the leavers, which was noted at the fence."""
    cohort, clean, run = draft.state.cohorts[affected.cohort_id], affected.fallback, draft.state.runs[affected.run_id]
    erasure, target = draft.state.erasures[affected.erasure_id], affected.round_at_fence
    fenced = e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0)
    if clean is not None and _is_clean(draft.state, affected, cohort, clean):
        fenced = replace(fenced, head_id=clean.id, head_digest=clean.digest, round=clean.round)
    num_rounds, before = planner.rounds_after_retraining(erasure), affected.head_before
    again = retraining(erasure, None, run, target, num_rounds, before).begun(fenced.round)
    fenced = replace(fenced, recovery=again, extra_rounds=extra_rounds(again, run, cohort) if again.then else 0)
    retrained = replace(affected, action="rolled-back", rollback_digest=fenced.head_digest)
    retrained = replace(retrained, target_round=again.last_round)
    _fence(draft, replace(retrained, clean_at=None, done_at=None), cohort, fenced)
    if draft.state.runs[run.id].status == "completed":
        draft.emit(e.RunReopened(run.id, "retraining without what was erased"))


def _fence(draft: Draft, affected: AffectedCohort, cohort: Cohort, fenced: e.CohortFenced) -> None:
    """Fence the cohort once more. What the method has published so far is not served any more, nor is anything that
    others made of it meanwhile: merged models, lines that restarted from it, runs that began with it."""
    stop_cohort(draft, cohort)
    erasure, given_up = draft.state.erasures[affected.erasure_id], _given_up(draft.state, affected, cohort)
    cutting.supersede(draft, erasure.id, given_up)
    draft.emit(fenced)
    cut = replace(affected, epoch_before=cohort.epoch, epoch_after=fenced.epoch, cut_at=draft.now)
    draft.emit(e.AffectedCohortFenced(cut))
    cutting.plan_others_again(draft, cut)
    concerned = {draft.state.checkpoints[checkpoint_id].run_id for checkpoint_id in given_up}
    for run_id in sorted(concerned | {cohort.run_id}):
        plan = cuts.plan_again(draft.state, run_id, given_up, spared=cohort.id)
        cutting.cut_run(draft, erasure, draft.state.runs[run_id], plan, None, {})


def _is_clean(state: State, affected: AffectedCohort, cohort: Cohort, model: CleanModel) -> bool:
    """What was noted at the fence may have been superseded since, or be what the method made before another cut."""
    known = state.checkpoints.get(model.id)
    is_served = known is not None and known.superseded_by is None
    return is_served and model.id not in _given_up(state, affected, cohort)


def _given_up(state: State, affected: AffectedCohort, cohort: Cohort) -> frozenset[UUID]:
    """What the method made, in this epoch or before another request cut the cohort, and what stands on that."""
    forgotten = {str(s.client_id) for s in state.subjects.values() if s.erasure_id == affected.erasure_id}
    own = [c for c in state.checkpoints.values() if c.cohort_id == cohort.id and c.superseded_by is None]
    made = [c.id for c in own if c.epoch == cohort.epoch or not forgotten.isdisjoint(c.forgets)]
    return cuts.made_of(state, made)
