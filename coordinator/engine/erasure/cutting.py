"""Carrying a plan of cuts out: what is given up is superseded, cohorts are stopped, fenced and planned anew, merged
models are made of what is clean. At the fence of a request, and again when one of its models has to be given up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import families, selection
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, GIVEN_UP, SETTLED, AffectedCohort, Erasure, Run, State
from coordinator.engine.erasure import cuts, planner
from coordinator.engine.erasure.recovery import extra_rounds, retraining, stage
from coordinator.engine.erasure.stages import CleanModel, Unlearn
from coordinator.engine.runs import stop_cohort
from services.methods.description import Unlearning


def supersede(draft: Draft, erasure_id: UUID, checkpoint_ids: Iterable[UUID]) -> None:
    models = (draft.state.checkpoints[checkpoint_id] for checkpoint_id in checkpoint_ids)
    if served := tuple(sorted(model.id for model in models if model.superseded_by is None)):
        draft.emit(e.CheckpointsSuperseded(served, erasure_id))


def cut_run(
    draft: Draft,
    erasure: Erasure,
    run: Run,
    cut: cuts.Cut,
    method: Unlearning | None,
    stages: Mapping[UUID, Unlearn | None],
    leaving: frozenset[UUID] = frozenset(),
) -> None:
    """`method`: None where it failed, and the cohorts are trained again. `stages`: those of the method, by cohort."""
    for one in cut.cuts:
        stop_cohort(draft, draft.state.cohorts[one.cohort.id])
        for client_id in sorted(leaving):
            member = draft.state.members.get((one.cohort.id, client_id))
            if member is not None and member.active:
                draft.emit(e.MemberLeft(one.cohort.id, client_id))
    for one in cut.cuts:
        _cut_cohort(draft, erasure, run, one, method, stages.get(one.cohort.id))
    for cohort_id, parent_id in sorted(cut.moved.items(), key=lambda item: str(item[0])):
        draft.emit(e.CohortMoved(cohort_id, parent_id))
    merging = _fence_merged(draft, run, cut)
    if cut.cuts:
        _measure_newcomers_again(draft, run)
    if run.status not in ENDED and any(one.action == "retired" for one in cut.cuts):
        draft.post(draft.state.cohorts[cut.cuts[0].cohort.id], m.SettleRun(run.id))
    retraining = any(one.action != "retired" for one in cut.cuts)
    if run.status == "completed" and (merging or retraining):
        draft.emit(e.RunReopened(run.id, "retraining without what was erased"))
    elif run.status == "completed" and cut.cuts and not _has_lines(draft.state, run):
        reason = "an erasure left no cohort of the run: it serves no model any more"
        draft.emit(e.RunEnded(run.id, "completed", reason, draft.now))


def _has_lines(state: State, run: Run) -> bool:
    return any(c.kind != "merge" and c.phase != "retired" for c in families.cohorts_of(state, run.id))


def _cut_cohort(
    draft: Draft, erasure: Erasure, run: Run, one: cuts.CohortCut, method: Unlearning | None, unlearn: Unlearn | None
) -> None:
    cohort = draft.state.cohorts[one.cohort.id]
    selection.forget(draft, cohort)
    affected = AffectedCohort(
        erasure_id=erasure.id,
        cohort_id=cohort.id,
        run_id=run.id,
        cohort_name=cohort.name,
        action=one.action,
        epoch_before=cohort.epoch,
        epoch_after=cohort.epoch + 1,
        round_at_fence=cohort.round,
        target_round=cohort.round,
        head_before=cohort.head_digest,
        rollback_digest=one.clean.digest if one.clean is not None and one.action == "rolled-back" else None,
        cut_at=draft.now,
    )
    fenced = e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0)
    match one.action:
        case "retired":
            draft.emit(fenced)
            draft.emit(e.CohortRetired(cohort.id, "none of its members is left, or another cohort took its place"))
            affected = replace(affected, clean_at=draft.now, done_at=draft.now)
        case "rolled-back":
            if one.clean is not None:
                fenced = replace(fenced, head_id=one.clean.id, head_digest=one.clean.digest, round=one.clean.round)
            num_rounds = planner.rounds_after_retraining(erasure)
            name = method.name if method is not None else None
            again = retraining(erasure, name, run, cohort.round, num_rounds, cohort.head_digest).begun(fenced.round)
            extra = extra_rounds(again, run, cohort) if again.then is not None else 0
            draft.emit(replace(fenced, recovery=again, extra_rounds=extra))
            affected = replace(affected, target_round=again.last_round)
        case "re-initialised":
            sources = tuple(families.source(draft, draft.state.cohorts[cohort_id]) for cohort_id in one.sources)
            assert method is not None
            num_rounds = planner.recovery_rounds(erasure, run, cohort, method)
            recovery = stage(erasure.recovery, run, cohort.round, num_rounds, cohort.head_digest).begun(cohort.round)
            extra = extra_rounds(recovery, run, cohort)
            fenced = replace(fenced, round=cohort.round, sources=sources, extra_rounds=extra, recovery=recovery)
            draft.emit(fenced)
            affected = replace(affected, sources=sources, target_round=recovery.until_round)
        case "unlearned":
            draft.emit(replace(fenced, unlearning=unlearn))
            if one.clean is not None:
                clean = CleanModel(one.clean.id, one.clean.digest, one.clean.round)
                affected = replace(affected, fallback=clean)
        case _:
            assert_never(one.action)
    if run.status in GIVEN_UP and one.action != "retired":
        draft.emit(e.CohortEnded(cohort.id, "finished", f"the run was {run.status}"))
        affected = replace(affected, clean_at=draft.now, done_at=draft.now)
    draft.emit(e.AffectedCohortFenced(affected))
    plan_others_again(draft, affected)


def _measure_newcomers_again(draft: Draft, run: Run) -> None:
    """A newcomer that is being compared with the profiles of others, which may be the leavers', is compared anew."""
    for cohort in families.cohorts_of(draft.state, run.id):
        if cohort.program == families.NEWCOMER and (cohort.program_state or {}).get("phase") == "measuring":
            stop_cohort(draft, cohort)
            draft.emit(e.CohortFenced(cohort.id, cohort.epoch + 1, None, None, 0))


def _fence_merged(draft: Draft, run: Run, cut: cuts.Cut) -> bool:
    """A merged model with a leaver in it is not served any more; it is made anew from what is clean, if anything is.
    So is one made of a line that is gone; it is served until then, and goes with its lines when none is left."""
    merged = families.merged_cohort(draft.state, run.id)
    if merged is None:
        return False
    is_tainted = merged.head_id in cut.tainted
    planned = {source.checkpoint_id for source in merged.sources}
    made_of = {p.parent_id for p in draft.state.parents.values() if p.checkpoint_id == merged.head_id}
    gone = {one.cohort.id for one in cut.cuts if one.action == "retired" and run.status not in GIVEN_UP}
    lost = {c for c in planned | made_of if draft.state.checkpoints[c].cohort_id in gone}
    if not is_tainted and not lost and planned.isdisjoint(cut.tainted):
        return False
    sources = families.merge_sources(draft, run) if run.status not in GIVEN_UP else []
    is_served = not is_tainted and (sources or not lost)
    stop_cohort(draft, merged)
    head = (merged.head_id, merged.head_digest) if is_served else (None, None)
    draft.emit(e.CohortFenced(merged.id, merged.epoch + 1, *head, merged.round))
    if sources:
        draft.emit(e.CohortRestarted(merged.id, tuple(sources), merged.round + 1))
    else:
        draft.emit(e.CohortEnded(merged.id, "finished", "nothing to merge yet"))
    return bool(sources)


def plan_others_again(draft: Draft, cut: AffectedCohort) -> None:
    """Other open requests that wait for this cohort go on from where it was cut now, towards their own targets."""
    for affected in [one for one in draft.state.affected_cohorts.values() if one.cohort_id == cut.cohort_id]:
        erasure = draft.state.erasures.get(affected.erasure_id)
        if affected.erasure_id == cut.erasure_id or erasure is None or erasure.status in SETTLED:
            continue
        draft.emit(e.AffectedCohortFenced(_cut_by_another(draft.state, affected, cut)))
        if erasure.status in ("verifying", "requires_action"):  # a purge may be under way
            draft.emit(e.ErasureMoved(erasure.id, "executing", "another erasure cut the same cohort"))


def _cut_by_another(state: State, affected: AffectedCohort, cut: AffectedCohort) -> AffectedCohort:
    """What a request does to a cohort after another cut it. Its own method's work, where the cohort stands on that, is
    audited as the cohort then is; where it does not, the leavers are out of it as the other request left it."""
    again = replace(
        cut,
        erasure_id=affected.erasure_id,
        epoch_before=affected.epoch_before,
        round_at_fence=affected.round_at_fence,
        target_round=max(affected.target_round, cut.target_round if cut.action == "re-initialised" else 0),
        head_before=affected.head_before,
        clean_at=affected.clean_at or cut.clean_at,
        cut_at=affected.cut_at,
    )
    if cut.action == "retired" or not _stands_on_own_method(state, affected, cut):
        return again
    can_be_asked = any(client.needed_by == affected.erasure_id for client in state.clients.values())
    audit = None if can_be_asked else affected.audit  # the leaver was released once it had passed
    again = replace(again, action="unlearned", rollback_digest=None, sources=(), audit=audit)
    return replace(again, fallback=affected.fallback)


def _stands_on_own_method(state: State, affected: AffectedCohort, cut: AffectedCohort) -> bool:
    """Whether the cohort goes on from a model that the request's own method made, or from one that stands on it."""
    if affected.action == cut.action == "unlearned":
        return True
    forgotten = {str(s.client_id) for s in state.subjects.values() if s.erasure_id == affected.erasure_id}
    made = [one.id for one in state.checkpoints.values() if not forgotten.isdisjoint(one.forgets)]
    cohort = state.cohorts[cut.cohort_id]
    begins_with = {cohort.head_id, *(source.checkpoint_id for source in cohort.sources)}
    return bool(made) and not begins_with.isdisjoint(cuts.made_of(state, made))
