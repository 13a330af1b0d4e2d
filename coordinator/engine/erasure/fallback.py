"""What follows when an approximate method gave up or its audit failed: the method again, or exact retraining."""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import events as e
from coordinator.engine.draft import Draft
from coordinator.engine.entities import SETTLED, AffectedCohort, Cohort, Erasure
from coordinator.engine.erasure.stages import Recover
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
    cohort, clean, target = draft.state.cohorts[affected.cohort_id], affected.fallback, affected.round_at_fence
    fenced = e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0)
    if clean is not None:
        fenced = replace(fenced, head_id=clean.id, head_digest=clean.digest, round=clean.round)
    fenced = replace(fenced, recovery=Recover(until_round=target, from_round=fenced.round))
    retrained = replace(affected, action="rolled-back", rollback_digest=fenced.head_digest, target_round=target)
    _fence(draft, replace(retrained, clean_at=None, done_at=None), cohort, fenced)
    run = draft.state.runs[affected.run_id]
    if run.status == "completed":
        draft.emit(e.RunReopened(run.id, "retraining without what was erased"))


def _fence(draft: Draft, affected: AffectedCohort, cohort: Cohort, fenced: e.CohortFenced) -> None:
    """Fence the cohort once more: what the method has published so far is not served any more."""
    stop_cohort(draft, cohort)
    own = [c for c in draft.state.checkpoints.values() if c.cohort_id == cohort.id and c.epoch == cohort.epoch]
    if made := tuple(sorted(c.id for c in own if c.superseded_by is None)):
        draft.emit(e.CheckpointsSuperseded(made, affected.erasure_id))
    draft.emit(fenced)
    cut = replace(affected, epoch_after=fenced.epoch)
    draft.emit(e.AffectedCohortFenced(cut))
    plan_others_again(draft, cut)


def plan_others_again(draft: Draft, cut: AffectedCohort) -> None:
    """Other open requests that wait for this cohort go on from where it was cut now, towards their own targets."""
    for affected in [one for one in draft.state.affected_cohorts.values() if one.cohort_id == cut.cohort_id]:
        erasure = draft.state.erasures.get(affected.erasure_id)
        if affected.erasure_id == cut.erasure_id or erasure is None or erasure.status in SETTLED:
            continue
        again = replace(
            cut,
            erasure_id=affected.erasure_id,
            epoch_before=affected.epoch_before,
            round_at_fence=affected.round_at_fence,
            target_round=max(affected.target_round, cut.target_round if cut.action == "re-initialised" else 0),
            head_before=affected.head_before,
            clean_at=affected.clean_at or cut.clean_at,
        )
        draft.emit(e.AffectedCohortFenced(again))
        if erasure.status in ("verifying", "requires_action"):  # a purge may be under way
            draft.emit(e.ErasureMoved(erasure.id, "executing", "another erasure cut the same cohort"))
