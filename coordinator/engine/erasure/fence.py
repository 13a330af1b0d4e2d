"""The fence: one decision after which nothing that was made with the leavers counts any more.

It bumps the epoch of every cohort with a leaver, revokes its work, discards what is buffered, moves the heads to clean
models and tombstones the client, in every run of the federation. Everything slow comes after.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never
from uuid import UUID

from coordinator.engine import events as e
from coordinator.engine import families
from coordinator.engine import messages as m
from coordinator.engine.draft import Draft
from coordinator.engine.entities import ENDED, GIVEN_UP, AffectedCohort, Erasure, Run, State
from coordinator.engine.erasure import cuts, fallback, planner, samples, unlearning
from coordinator.engine.erasure.completion import settle
from coordinator.engine.erasure.recovery import recovery_of
from coordinator.engine.erasure.stages import CleanModel, Recover, Unlearn
from coordinator.engine.runs import stop_cohort
from services.methods.description import Unlearning


def fence_erasure(draft: Draft, message: m.FenceErasure) -> Erasure:
    erasure = draft.state.erasures[message.erasure_id]
    if message.job_id in draft.state.jobs:
        draft.emit(e.JobSettled(message.job_id, "done"))
    if not erasure.awaits_fence or erasure.duplicate_of is not None:
        return erasure
    leavers = frozenset(s.client_id for s in draft.state.subjects.values() if s.erasure_id == erasure.id)
    leavers = frozenset(c for c in leavers if draft.state.clients[c].status != "erased")  # by a later request
    chosen = planner.choose(planner.options(draft.state, erasure, leavers), erasure.method)
    for run in sorted(draft.state.runs.values(), key=lambda r: r.id):
        _fence_run(draft, erasure, run, leavers, chosen)
    if erasure.scope == "samples":
        samples.order(draft, erasure)
    else:
        _take_over_samples(draft, erasure, leavers, chosen.method)
    for client_id in sorted(leavers) if erasure.scope == "client" else ():
        draft.emit(
            e.ClientErased(client_id, erasure.id, is_needed=chosen.asks_leavers(audited=erasure.audit is not None))
        )
    draft.emit(e.ErasureMoved(erasure.id, "fenced", fenced_at=draft.now, chosen=chosen.name))
    return draft.state.erasures[erasure.id]


def _take_over_samples(draft: Draft, erasure: Erasure, leavers: frozenset[UUID], method: Unlearning) -> None:
    """Whoever forgets a whole client forgets its samples: open requests for these alone, not fenced yet, are carried
    out with this one. One that also names clients who stay goes on without the leavers; after an approximate method it
    could not say of their samples that they are gone, and fails."""
    names = {draft.state.clients[client_id].name for client_id in leavers}
    for other in sorted(draft.state.erasures.values(), key=lambda o: o.id):
        is_open = other.awaits_fence or other.status == "awaiting_approval"
        is_of_here = other.federation_id == erasure.federation_id
        if other.scope != "samples" or not is_open or not is_of_here or other.duplicate_of is not None:
            continue
        concerned = set(other.samples)
        if concerned <= names:
            why = f"carried out as {erasure.id}, which forgets the whole client"
            draft.emit(e.ErasureMoved(other.id, "received", why, duplicate_of=erasure.id))
        elif method.guarantee == "approximate" and names & concerned:
            left = ", ".join(sorted(names & concerned))
            settle(draft, other, "failed", f"{left} is erased by {erasure.id}; file again for the other clients")


def _fence_run(draft: Draft, erasure: Erasure, run: Run, leavers: frozenset[UUID], chosen: planner.Option) -> None:
    cut = planner.cuts(draft.state, erasure, leavers, run, chosen.method)
    methods = {one.cohort.id: _unlearn(draft, erasure, run, one, leavers, chosen) for one in cut.cuts}
    leaving = leavers if erasure.scope == "client" else frozenset[UUID]()
    if gone := _clients_of(draft.state, run) & leaving:
        draft.emit(e.RunResized(run.id, max(0, run.num_clients - len(gone))))
    own = [draft.state.checkpoints[c] for c in cut.tainted if draft.state.checkpoints[c].run_id == run.id]
    if tainted := tuple(sorted(c.id for c in own if c.superseded_by is None)):
        draft.emit(e.CheckpointsSuperseded(tainted, erasure.id))
    for one in cut.cuts:
        stop_cohort(draft, draft.state.cohorts[one.cohort.id])
        for client_id in sorted(leaving):
            member = draft.state.members.get((one.cohort.id, client_id))
            if member is not None and member.active:
                draft.emit(e.MemberLeft(one.cohort.id, client_id))
    for one in cut.cuts:
        _cut_cohort(draft, erasure, run, one, chosen, methods[one.cohort.id])
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


def _clients_of(state: State, run: Run) -> set[UUID]:
    """Everybody who ever was a member of the run."""
    return {m.client_id for m in state.members.values() if state.cohorts[m.cohort_id].run_id == run.id}


def _unlearn(
    draft: Draft, erasure: Erasure, run: Run, one: cuts.CohortCut, leavers: frozenset[UUID], chosen: planner.Option
) -> Unlearn | None:
    """The stage in which the chosen method runs, gathered while the cohort still has its head."""
    if one.action != "unlearned":
        return None
    num_rounds = planner.recovery_rounds(erasure, run, one.cohort, chosen.method)
    then = Recover(until_round=one.cohort.round, num_rounds=num_rounds)
    seed = draft.new_id().int % 2**62  # of an id that is used for nothing else, and so is not known
    return unlearning.gather(draft.state, erasure, one.cohort, leavers, method=chosen.name, seed=seed, then=then)


def _cut_cohort(
    draft: Draft, erasure: Erasure, run: Run, one: cuts.CohortCut, chosen: planner.Option, unlearn: Unlearn | None
) -> None:
    cohort = draft.state.cohorts[one.cohort.id]
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
            draft.emit(replace(fenced, recovery=recovery_of(erasure, chosen.name, cohort.round).begun(fenced.round)))
        case "re-initialised":
            sources = tuple(families.source(draft, draft.state.cohorts[cohort_id]) for cohort_id in one.sources)
            num_rounds = planner.recovery_rounds(erasure, run, cohort, chosen.method)
            recovery = Recover(until_round=cohort.round, num_rounds=num_rounds).begun(cohort.round)
            extra = max(0, recovery.until_round - run.spec.stop.rounds - cohort.extra_rounds)
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
    fallback.plan_others_again(draft, affected)


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
